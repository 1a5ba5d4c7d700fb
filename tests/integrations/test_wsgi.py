"""The WSGI middleware, on a real server with real requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.validate import validator

import httpx
import pytest

from headgate import Limiter, RuleSet, UsageError
from headgate.integrations.wsgi import WSGIRateLimitMiddleware
from headgate.testing import ManualClock
from tests.integrations.serving import serving
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.servers.redis import RedisServer


def hello(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/fails":
        raise RuntimeError("the handler fails")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return iter([b"hello ", b"world"])


def ask(
    app: Any, *paths: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> list[httpx.Response]:
    """Send requests to a WSGI app, one after the other."""
    transport = httpx.WSGITransport(app, remote_addr="203.0.113.9", raise_app_exceptions=False)
    with httpx.Client(transport=transport, base_url="http://app") as client:
        return [client.request(method, path, headers=headers) for path in paths]


def statuses(app: Any, *paths: str, **how: Any) -> list[int]:
    return [response.status_code for response in ask(app, *paths, **how)]


def limited(rate: str | None = "2/minute", **options: Any) -> WSGIRateLimitMiddleware:
    return WSGIRateLimitMiddleware(hello, rate=rate, **options)


def test_requests_above_the_rate_are_refused_with_retry_after() -> None:
    clock = ManualClock(1_800_000_000)
    app = limited(limiter=Limiter(clock=clock))
    first, second, third = ask(app, "/", "/a", "/b?c=d")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.text == "hello world"
    assert first.headers["ratelimit-policy"] == '"default";q=2;w=60'
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert "retry-after" not in second.headers
    assert third.headers["content-type"] == "application/problem+json"
    wait = int(third.headers["retry-after"])
    assert third.json()["detail"] == f"rate limit exceeded; try again in {wait} seconds"
    assert third.json()["violated-policies"] == ["default"]
    clock.advance(wait - 1)
    assert statuses(app, "/") == [429]
    clock.advance(1)
    assert statuses(app, "/") == [200]


def test_a_forwarded_header_is_used_only_from_trusted_proxies() -> None:
    spoofed = [{"x-forwarded-for": f"198.51.100.{n}"} for n in range(2)]
    app, told = limited("1/minute"), limited("1/minute", trusted_proxies=["203.0.113.0/24"])
    assert [statuses(app, "/", headers=one) for one in spoofed] == [[200], [429]]
    assert [statuses(told, "/", headers=one) for one in spoofed] == [[200], [200]]
    longer = {"x-forwarded-for": "192.0.2.77, 198.51.100.1"}
    assert statuses(told, "/", headers=longer) == [429]


def test_keys_costs_and_exempt_paths() -> None:
    def api_key(environ: dict[str, Any]) -> str | None:
        return environ.get("HTTP_X_KEY")

    app = limited("4/minute", key=api_key, cost=lambda _: 2, exempt=["/healthz", "/static/*"])
    assert statuses(app, "/", "/", "/", headers={"x-key": "a"}) == [200, 200, 429]
    assert statuses(app, "/", headers={"x-key": "b"}) == [200]
    assert statuses(app, "/", "/", "/") == [200, 200, 429]  # By address.
    assert statuses(app, "/healthz", "/static/a.css", "/static/../x") == [200, 200, 429]
    (never,) = ask(limited("1/minute", cost=2), "/")
    assert never.status_code == 429
    assert "retry-after" not in never.headers


def test_a_denied_request_is_charged_by_none_of_several_rates() -> None:
    clock = ManualClock(1_800_000_000)
    app = limited("1/second; 3/hour", limiter=Limiter(clock=clock), algorithm="fixed_window")
    assert statuses(app, *["/"] * 9) == [200] + [429] * 8
    for expected in (200, 200, 429):  # The hour was charged only for what passed.
        clock.advance(1)
        assert statuses(app, "/") == [expected]


RULES = """
rules:
  - {rule_id: items, match: {path_pattern: "/items/*"}, identifier: ip_address, rate: 2/minute}
  - {rule_id: people, match: {path_pattern: "/people/*"}, identifier: user_id, rate: 1/minute}
"""


def test_rules_decide_by_path_pattern_and_user() -> None:
    rules = RuleSet.parse(RULES)
    app = limited(None, rules=rules, key=lambda environ: environ.get("HTTP_X_USER"))
    assert statuses(app, "/items/1", "/items/2", "/%69tems/ü", "/") == [200, 200, 429, 200]
    assert statuses(app, "/people/1", "/people/2", headers={"x-user": "ada"}) == [200, 429]
    assert statuses(app, "/people/1", headers={"x-user": "bob"}) == [200]
    assert statuses(limited(None, limiter=Limiter(rules=rules)), *["/items/1"] * 3)[-1] == 429


def test_a_handler_that_fails_was_counted_and_fails_as_before() -> None:
    app = limited("1/minute")
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/fails", "REMOTE_ADDR": "203.0.113.9"}
    with pytest.raises(RuntimeError, match="the handler fails"):
        app(asked, None)  # type: ignore[arg-type]
    assert statuses(app, "/") == [429]


def test_nested_limits_send_one_trio_of_headers_and_headers_can_be_turned_off() -> None:
    inner = limited("2/minute", name="inner")
    (both,) = ask(WSGIRateLimitMiddleware(inner, "10/minute"), "/")
    assert both.headers.get_list("x-ratelimit-limit") == ["2"]
    assert both.headers["ratelimit-policy"] == '"inner";q=2;w=60, "default";q=10;w=60'
    first, second = ask(limited("1/minute", headers=False), "/", "/")
    assert not [name for name in (*first.headers, *second.headers) if "ratelimit" in name]
    assert int(second.headers["retry-after"]) >= 1


def test_a_store_that_is_away_closes_or_opens() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    (closed,) = ask(limited(limiter=url), "/")
    assert (closed.status_code, closed.headers["retry-after"]) == (503, "1")
    assert statuses(limited(limiter=url, on_error="open"), "/", "/", "/") == [200] * 3


@pytest.mark.parametrize(
    "options, says",
    [
        ({}, "no limit"),
        ({"rate": "1/minute", "rules": RuleSet.parse(RULES)}, "not both"),
        ({"rate": "1/minute", "limiter": 5}, "must be a Limiter"),
        ({"rate": "1/minute", "on_error": "pass"}, "on_error"),
    ],
)
def test_mistakes_raise_when_the_app_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        WSGIRateLimitMiddleware(hello, **options)


class Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = WSGIServer.address_family


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextmanager
def threaded(app: Any) -> Iterator[str]:
    """Python's own WSGI server, with a thread for each request."""
    (port,) = free_ports(1)
    with make_server(HOST, port, app, Threads, Quiet) as server:
        running = threading.Thread(target=server.serve_forever, args=(0.05,))
        running.start()
        try:
            yield f"http://{HOST}:{port}/"
        finally:
            server.shutdown()
            running.join()


def test_a_count_is_exact_under_threads_and_keeps_to_the_protocol() -> None:
    app = validator(WSGIRateLimitMiddleware(validator(hello), "20/hour"))
    with threaded(app) as url, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: httpx.get(url, timeout=20), range(50)))
    passed = [one for one in answers if one.status_code == 200]
    assert (len(passed), sum(one.status_code == 429 for one in answers)) == (20, 30)
    assert sorted(int(one.headers["x-ratelimit-remaining"]) for one in passed) == list(range(20))


APP = """
import os, sys
from wsgiref.simple_server import make_server
from headgate.integrations.wsgi import WSGIRateLimitMiddleware

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]

app = WSGIRateLimitMiddleware(hello, "10/hour", limiter=os.environ["REDIS_URL"], exempt=["/ready"])
make_server("127.0.0.1", int(sys.argv[1]), app).serve_forever()
"""


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
def test_processes_share_one_count(redis_server: RedisServer) -> None:
    """Two servers have to start, each a Python of its own."""
    environment = {"REDIS_URL": redis_server.url}
    with (
        serving(APP, "main", "{port}", environment=environment) as one,
        serving(APP, "main", "{port}", environment=environment) as two,
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda app: app.get().status_code, [one, two] * 15))
    assert (found.count(200), found.count(429)) == (10, 20)
