"""Limits in Django: middleware, views, classes, async projects and system checks, and real workers."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from headgate import Limiter
from headgate.integrations import _django_site
from headgate.integrations.django import by_user, check_settings, limit
from headgate.testing import ManualClock
from tests.integrations import django_site
from tests.integrations.django_site import (
    MIDDLEWARE,
    ask,
    ask_async,
    site,
    statuses,
    statuses_async,
)
from tests.integrations.serving import UVICORN, serving
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import RedisServer

ASKERS: list[Any] = [ask, ask_async]


@pytest.mark.parametrize("asking", ASKERS)
def test_a_view_is_limited_and_reports_the_remaining_units(
    asking: Callable[..., list[Any]],
) -> None:
    clock = ManualClock(1_800_000_000)
    with site({"ENGINE": Limiter(clock=clock)}):
        first, second, third = asking("/items/1", "/items/2", "/items/3?x=1")
        assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
        assert first.headers["RateLimit-Policy"] == '"item";q=2;w=60'
        assert first.headers["X-RateLimit-Remaining"] == "1"
        assert "Retry-After" not in second.headers
        assert third.headers["Content-Type"] == "application/problem+json"
        wait = int(third.headers["Retry-After"])
        problem = json.loads(third.content)
        assert problem["detail"] == f"rate limit exceeded; try again in {wait} seconds"
        assert problem["violated-policies"] == ["item"]
        clock.advance(wait)
        assert [one.status_code for one in asking("/items/1")] == [200]


@pytest.mark.parametrize("asking", [statuses, statuses_async])
def test_the_site_and_the_view_are_charged_together_or_not_at_all(
    asking: Callable[..., list[int]],
) -> None:
    with site({"RATE": "5/minute"}):
        assert asking("/", "/") == [200, 200]
        assert asking(*["/"] * 9) == [429] * 9  # Denied by the view, so the site counts none.
        assert asking("/free", "/nowhere", "/nowhere", "/free") == [200, 404, 404, 429]


def test_what_reaches_no_view_is_counted() -> None:
    with site({"RATE": "2/minute"}):
        assert statuses("/nowhere", "/nowhere", "/nowhere") == [404, 404, 429]
        assert statuses_async("/nowhere") == [429]  # One count for both kinds of requests.


def test_sync_and_async_views_share_a_site_s_count() -> None:
    with site({"RATE": "3/minute"}):
        assert statuses("/free") + statuses_async("/free") == [200, 200]
        assert statuses("/awaited") + statuses_async("/awaited") == [200, 429]


def test_without_the_middleware_a_view_counts_by_itself() -> None:
    with site(MIDDLEWARE=[]):
        first, _, third = ask("/", "/", "/")
        assert (first.headers["X-RateLimit-Remaining"], third.status_code) == ("1", 429)
        assert statuses_async("/awaited", "/awaited", "/awaited") == [200, 200, 429]
        assert statuses("/awaited") == [429]


def test_keys_and_costs_by_functions() -> None:
    with site():
        assert statuses("/costly?cost=3", "/costly?cost=2", "/costly", X_User="a") == [
            200,
            429,
            200,
        ]
        assert statuses("/costly?cost=4", "/costly", X_User="b") == [200, 429]
        assert statuses("/costly?cost=4", "/costly") == [200, 429]  # By address.
        (never,) = ask("/costly?cost=5", X_User="c")
        assert never.status_code == 429
        assert "Retry-After" not in never.headers
        assert statuses_async("/team", "/team", X_Team="7") == [200, 429]
        assert statuses_async("/team", X_Team="8") == [200]


def test_two_limits_of_a_view_have_counts_of_their_own() -> None:
    with site():
        assert statuses("/two", "/two", X_User="203.0.113.9") == [200, 429]
        (first,) = ask("/two", address="203.0.113.10")
        assert first.headers["RateLimit-Policy"] == '"two";q=1;w=60, "two#2";q=3;w=60'


def test_a_decorator_that_hides_the_limit_does_not_switch_it_off() -> None:
    with site({"RATE": "9/minute"}):
        first, _, third = ask("/hidden", "/hidden", "/hidden")
        assert third.status_code == 429
        assert first.headers["RateLimit-Policy"] == '"default";q=9;w=60, "hidden";q=2;w=60'


def test_a_class_is_limited_as_a_whole_and_by_method() -> None:
    with site():
        assert statuses("/shop", method="post") == [200]
        assert statuses("/shop", method="post") == [429]
        with site({"RATE": "9/minute"}):
            assert statuses("/shop", "/shop", "/shop") == [200, 200, 429]


def test_head_options_and_views_that_fail_count_like_any_other() -> None:
    with site():
        assert statuses("/", method="head") + statuses("/", method="options") == [200, 200]
        assert statuses("/") == [429]
        assert statuses("/failing", "/failing", "/failing") == [500, 500, 429]


def test_streams_are_not_held_back() -> None:
    with site():
        first, _, third = ask_async("/streaming", "/streaming", "/streaming")
        assert (first.status_code, third.status_code) == (200, 429)
        assert first.headers["X-RateLimit-Remaining"] == "1"
        assert first.text == "one two"


def test_exempt_paths_are_not_counted() -> None:
    with site({"RATE": "1/minute", "EXEMPT": ["/health"]}):
        assert statuses("/health", "/health", "/free", "/free") == [200, 200, 200, 429]


def test_only_trusted_proxies_may_set_the_client_address() -> None:
    with site({"RATE": "1/minute"}):
        assert statuses("/free", "/free", X_Forwarded_For="198.51.100.1") == [200, 429]
        assert statuses("/free", X_Forwarded_For="198.51.100.2") == [429]
    with site({"RATE": "1/minute", "TRUSTED_PROXIES": ["203.0.113.0/24"]}):
        assert statuses("/free", "/free", X_Forwarded_For="198.51.100.1") == [200, 429]
        assert statuses("/free", X_Forwarded_For="198.51.100.2") == [200]
        assert statuses_async("/free", X_Forwarded_For="198.51.100.2") == [429]


def test_an_ipv6_client_is_counted_by_its_network() -> None:
    with site({"RATE": "1/minute"}):
        assert statuses("/free", address="2001:db8::1") == [200]
        assert statuses("/free", address="2001:db8::2") == [429]
        assert statuses("/free", address="2001:db8:0:1::1") == [200]


RULES = """
rules:
  - rule_id: items
    match: {path_pattern: "/items/*"}
    identifier: ip_address
    rate: 1/minute
  - rule_id: users
    identifier: user_id
    rate: 3/minute
"""


def test_rules_decide_what_a_site_counts(tmp_path: Any) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    key = f"{django_site.__name__}.by_user_header"
    with site({"RULES": str(rules), "KEY": key, "EXEMPT": ["/health"]}):
        assert statuses("/items/1", "/items/2") == [200, 429]
        assert statuses_async("/items/3") == [429]
        assert statuses(*["/free"] * 4, X_User="ada") == [200, 200, 200, 429]
        assert statuses_async("/free", X_User="ada") == [429]
        assert statuses("/free", "/health", X_User="bob") == [200, 200]


class User:
    def __init__(self, pk: int | None) -> None:
        self.pk = pk
        self.is_authenticated = pk is not None


def test_signed_in_users_are_counted_by_their_id() -> None:
    view = limit("1/minute", key=by_user)(django_site.plain)

    def ask_as(pk: int | None, address: str) -> int:
        request = RequestFactory().get("/", REMOTE_ADDR=address)
        request.user = User(pk)  # type: ignore[assignment]
        status: int = view(request).status_code
        return status

    with site(MIDDLEWARE=[]):
        assert [ask_as(7, "203.0.113.1"), ask_as(7, "203.0.113.2")] == [200, 429]
        assert [ask_as(8, "203.0.113.1"), ask_as(None, "203.0.113.1")] == [200, 200]
        assert ask_as(None, "203.0.113.1") == 429


def test_a_store_that_is_away_closes_or_opens() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    with site({"ENGINE": url}):
        (closed,) = ask("/")
        assert (closed.status_code, closed.headers["Retry-After"]) == (503, "1")
        assert statuses_async("/awaited") == [503]
    with site({"ENGINE": url, "ON_ERROR": "open"}):
        assert statuses("/", "/", "/") == [200] * 3
        assert statuses_async("/awaited") == [200]


def test_headers_can_be_left_out() -> None:
    with site({"HEADERS": False}):
        _, _, third = ask("/", "/", "/")
        assert "RateLimit" not in third.headers
        assert int(third.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    "headgate, told",
    [
        ({"RATE": "many"}, "many"),
        ({"RATES": "1/minute"}, "RATES"),
        ({"RATE": "1/minute", "RULES": "rules.yaml"}, "not both"),
        ({"ON_ERROR": "maybe"}, "maybe"),
        ({"KEY": "nowhere.to_be_found"}, "nowhere"),
        ({"KEY": 7}, "dotted path"),
        ({"ENGINE": "sqlite://x"}, "sqlite"),
        ({"TRUSTED_PROXIES": ["here"]}, "trusted_proxies"),
    ],
)
def test_invalid_settings_are_reported(headgate: dict[str, Any], told: str) -> None:
    with site(headgate):
        (found,) = check_settings()
        assert (found.id, found.is_serious()) == ("headgate.E001", True)
        assert told in found.msg
        with pytest.raises(ImproperlyConfigured, match=told):
            _django_site.site_limits()


@pytest.mark.parametrize(
    "headgate, others, codes",
    [
        ({"ENGINE": "redis://localhost"}, {}, []),
        ({}, {"DEBUG": True}, []),
        ({}, {}, ["headgate.W001"]),
        (
            {"ENGINE": "redis://localhost", "RATE": "1/minute"},
            {"MIDDLEWARE": []},
            ["headgate.E002"],
        ),
        ({"ENGINE": "redis://localhost"}, {"USE_X_FORWARDED_HOST": True}, ["headgate.W002"]),
        (
            {"ENGINE": "redis://localhost", "TRUSTED_PROXIES": ["10.0.0.0/8"]},
            {"USE_X_FORWARDED_HOST": True},
            [],
        ),
        ({}, {"DEBUG": True, "MIDDLEWARE": [MIDDLEWARE, MIDDLEWARE]}, ["headgate.W005"]),
    ],
)
def test_what_looks_wrong_is_found_by_the_system_checks(
    headgate: dict[str, Any], others: dict[str, Any], codes: list[str]
) -> None:
    with site(headgate, **others):
        assert [
            one.id for one in checks.run_checks() if str(one.id).startswith("headgate")
        ] == codes


def test_threads_that_come_first_share_one_count() -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            with site({"RATE": "1/hour"}):
                ready = Barrier(4)

                def first(_: int, ready: Barrier = ready) -> int:
                    ready.wait()
                    (status,) = statuses("/free")
                    return status

                with ThreadPoolExecutor(4) as pool:
                    assert sorted(pool.map(first, range(4))) == [200, 429, 429, 429]
    finally:
        sys.setswitchinterval(interval_s)


APP = """
import os
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

settings.configure(
    SECRET_KEY="test", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DEBUG=False,
    MIDDLEWARE=["headgate.integrations.django.DjangoRateLimitMiddleware"],
    HEADGATE={"ENGINE": os.environ["REDIS_URL"]},
)
django.setup()

from django.core.handlers.%(kind)s import %(handler)s
from headgate.integrations.django import limit

@limit("20/hour")
%(define)s item(request, item):
    return HttpResponse(str(os.getpid()))

urlpatterns = [path("items/<int:item>", item)]
app = %(handler)s()
"""
WSGI = APP % {"kind": "wsgi", "handler": "WSGIHandler", "define": "def"}
ASGI = APP % {"kind": "asgi", "handler": "ASGIHandler", "define": "async def"}
GUNICORN = (
    "gunicorn",
    "main:app",
    "--bind",
    f"{HOST}:{{port}}",
    "--workers",
    "2",
    "--threads",
    "2",
)
WORKERS = {"gunicorn": (WSGI, GUNICORN), "uvicorn": (ASGI, (*UVICORN, "--workers", "2"))}


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
@pytest.mark.parametrize("server", WORKERS)
def test_workers_share_one_count(redis_server: RedisServer, server: str) -> None:
    """Two workers have to start."""
    source, command = WORKERS[server]
    with (
        serving(source, *command, environment={"REDIS_URL": redis_server.url}) as app,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda n: app.get(f"/items/{n}"), range(50)))
    passed = [answer for answer in answers if answer.status_code == 200]
    assert (len(passed), sum(answer.status_code == 429 for answer in answers)) == (20, 30)
    assert sorted(int(one.headers["x-ratelimit-remaining"]) for one in passed) == list(range(20))
