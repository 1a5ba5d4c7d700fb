"""Throttles of Django REST framework: exact, charged together, with the framework's own settings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from headgate import Limiter
from headgate.testing import ManualClock
from tests.integrations.django_site import site
from tests.servers.process import free_ports

if TYPE_CHECKING:
    from rest_framework.request import Request

from rest_framework.response import Response
from rest_framework.views import APIView

from headgate.integrations.django import DjangoRateLimitMiddleware
from headgate.integrations.drf import AnonThrottle, HeadgateThrottle, ScopedThrottle, UserThrottle


class User:
    def __init__(self, pk: int) -> None:
        self.pk = pk
        self.is_authenticated = True


class BurstThrottle(UserThrottle):
    scope = "burst"
    rate = "2/second burst 2"


class TenantThrottle(HeadgateThrottle):
    scope = "tenant"
    rate = "1/minute"

    def key(self, request: Request, view: APIView) -> str | None:
        return request.headers.get("X-Tenant")


def view_with(*throttles: type, **attributes: Any) -> Any:
    def get(_: APIView, __: Request) -> Response:
        return Response("hello")

    body = {"throttle_classes": list(throttles), "get": get, **attributes}
    hello: Any = type("Hello", (APIView,), body)
    return hello.as_view()


def ask(
    view: Any,
    times: int = 1,
    user: User | None = None,
    address: str = "203.0.113.9",
    **headers: str,
) -> list[Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}

    def one() -> Any:
        request = RequestFactory().get("/", REMOTE_ADDR=address, headers=sent)
        if user is not None:
            request._force_auth_user = user  # type: ignore[attr-defined]
        return DjangoRateLimitMiddleware(view)(request)

    return [one() for _ in range(times)]


def statuses(view: Any, times: int = 1, **how: Any) -> list[int]:
    return [response.status_code for response in ask(view, times, **how)]


def test_anonymous_clients_are_counted_by_address_and_get_retry_after() -> None:
    clock = ManualClock(1_800_000_000)
    with site({"ENGINE": Limiter(clock=clock)}):
        view = view_with(AnonThrottle)
        *_, third, denied = ask(view, 4)
        assert (third.status_code, denied.status_code) == (200, 429)
        assert third.headers["RateLimit-Policy"] == '"anon";q=3;w=60'
        assert third.headers["X-RateLimit-Remaining"] == "0"
        wait = int(denied.headers["Retry-After"])
        assert denied.data["detail"].code == "throttled"
        assert statuses(view, address="203.0.113.10") == [200]
        clock.advance(wait)
        assert statuses(view) == [200]


def test_users_are_counted_by_their_id_wherever_they_come_from() -> None:
    with site():
        view = view_with(AnonThrottle, UserThrottle)
        assert statuses(view, 6, user=User(7)) == [200] * 5 + [429]
        assert statuses(view, user=User(7), address="203.0.113.10") == [429]
        assert statuses(view, user=User(8)) == [200]


def test_a_throttle_that_denies_costs_the_others_nothing() -> None:
    with site({"ENGINE": Limiter(clock=ManualClock(1_800_000_000))}):
        view = view_with(UserThrottle, TenantThrottle)
        assert statuses(view, 9, user=User(7), X_Tenant="blue") == [200] + [429] * 8
        assert statuses(view, 5, user=User(7)) == [200] * 4 + [429]
        other = view_with(TenantThrottle, UserThrottle)  # The order makes no difference.
        assert statuses(other, 9, user=User(8), X_Tenant="green") == [200] + [429] * 8
        assert statuses(other, 5, user=User(8)) == [200] * 4 + [429]


def test_views_of_one_scope_share_a_count() -> None:
    with site():
        one = view_with(ScopedThrottle, throttle_scope="search")
        two = view_with(ScopedThrottle, throttle_scope="search")
        assert statuses(one) + statuses(two) + statuses(one) == [200, 200, 429]
        assert statuses(view_with(ScopedThrottle), 9) == [200] * 9


def test_a_rate_may_be_anything_that_headgate_reads() -> None:
    with site({"ENGINE": Limiter(clock=ManualClock(1_800_000_000))}):
        assert statuses(view_with(BurstThrottle), 3) == [200, 200, 429]


def test_a_missing_or_invalid_rate_is_an_error() -> None:
    class Wrong(UserThrottle):
        rate = "many"

    class Missing(UserThrottle):
        scope = "nowhere"

    with site():
        for throttle, told in ((Wrong, "many"), (Missing, "nowhere")):
            with pytest.raises(ImproperlyConfigured, match=told):
                ask(view_with(throttle))


def test_requests_at_the_same_moment_never_share_the_last_unit() -> None:
    """The framework's own throttles read and write the cache in two steps, and admit more."""
    with site():
        view = view_with(UserThrottle)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: statuses(view, user=User(7))[0], range(60)))
        assert found.count(200) == 5


def test_a_store_that_is_away_closes_or_opens() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    with site({"ENGINE": url}):
        (denied,) = ask(view_with(UserThrottle))
        assert (denied.status_code, denied.headers["Retry-After"]) == (503, "1")
    with site({"ENGINE": url, "ON_ERROR": "open"}):
        assert statuses(view_with(UserThrottle), 2) == [200, 200]


def test_a_site_without_the_middleware_is_limited_too() -> None:
    with site(MIDDLEWARE=[]):
        view = view_with(AnonThrottle)
        answers = [view(RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429]
