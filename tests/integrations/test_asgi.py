"""The ASGI middleware: around Starlette, around a bare app, and on a real server with a real Redis."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from headgate import AsyncLimiter, ConfigError, RuleSet, UsageError
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.testing import ManualClock
from tests.integrations.serving import UVICORN, Denied, TestClient, ask, serving, statuses
from tests.servers.fixtures import on_flavours
from tests.servers.process import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from tests.servers.redis import RedisServer


async def hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.path_params.get('name', '')}")


async def failing(_: Request) -> Response:
    raise RuntimeError("the handler fails")


async def streaming(_: Request) -> Response:
    async def numbers() -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number}\n"

    return StreamingResponse(numbers())


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
    await websocket.close()


ROUTES = [
    Route("/", hello),
    Route("/items/{name}", hello, methods=["GET", "POST"]),
    Route("/fails", failing),
    Route("/stream", streaming),
    WebSocketRoute("/echo", echo),
    Mount("/sub", Starlette(routes=[Route("/", hello), Route("/{name}", hello)])),
]


def limited(rate: str | None = "2/minute", **options: Any) -> Starlette:
    return Starlette(
        routes=ROUTES, middleware=[Middleware(RateLimitMiddleware, rate=rate, **options)]
    )


def test_requests_above_the_rate_are_refused_with_retry_after() -> None:
    clock = ManualClock(1_800_000_000)
    app = limited(limiter=AsyncLimiter(clock=clock))
    first, second, third = ask(app, "/", "/", "/")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["ratelimit-policy"] == '"default";q=2;w=60'
    assert first.headers["ratelimit"].startswith('"default";r=1;t=')
    assert first.headers["x-ratelimit-limit"] == "2"
    assert second.headers["x-ratelimit-remaining"] == "0"
    assert "retry-after" not in second.headers
    assert third.headers["content-type"] == "application/problem+json"
    wait = int(third.headers["retry-after"])
    assert third.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": f"rate limit exceeded; try again in {wait} seconds",
        "violated-policies": ["default"],
    }
    clock.advance(wait - 1)
    assert statuses(app, "/") == [429]
    clock.advance(1)
    assert statuses(app, "/") == [200]


def test_each_client_has_its_own_count_and_one_subnet_of_ipv6_is_one_client() -> None:
    app = limited("1/minute")
    assert statuses(app, "/", "/", client="203.0.113.1") == [200, 429]
    assert statuses(app, "/", client="203.0.113.2") == [200]
    assert statuses(app, "/", client="2001:db8::1") == [200]
    assert statuses(app, "/", client="2001:db8::ffff") == [429]
    assert statuses(app, "/", client="2001:db8:0:1::1") == [200]
    assert statuses(app, "/", client="::ffff:203.0.113.2") == [429]


def test_concrete_urls_share_one_count() -> None:
    paths = ["/items/1", "/items/2", "/items/3?x=1", "/sub/4", "/nowhere"]
    assert statuses(limited("2/minute"), *paths) == [200, 200, 429, 429, 429]


def test_a_forwarded_header_from_an_untrusted_peer_is_ignored() -> None:
    app = limited("1/minute")
    spoofed = [statuses(app, "/", headers={"x-forwarded-for": f"198.51.100.{n}"}) for n in range(3)]
    assert spoofed == [[200], [429], [429]]


def test_a_trusted_proxy_is_trusted_for_its_own_client_only() -> None:
    app = limited("1/minute", trusted_proxies=["10.0.0.0/8"])

    def through_proxy(forwarded: str, client: str = "10.0.0.1") -> int:
        return statuses(app, "/", client=client, headers={"x-forwarded-for": forwarded})[0]

    assert through_proxy("203.0.113.1") == 200
    assert through_proxy("203.0.113.2") == 200
    assert (
        through_proxy("198.51.100.7, 203.0.113.2") == 429
    )  # The left one is the client's own word.
    assert through_proxy("203.0.113.2, 10.9.9.9") == 429  # Two proxies of ours.
    assert through_proxy("203.0.113.3", client="192.0.2.1") == 200  # No proxy of ours.
    assert through_proxy("203.0.113.4", client="192.0.2.1") == 429


def test_clients_behind_a_unix_socket(caplog: pytest.LogCaptureFixture) -> None:
    app, told = limited("1/minute"), limited("1/minute", trusted_proxies=["unix"])

    def through_socket(app: Any, forwarded: str | None) -> int:
        async def without_client(scope: Any, receive: Any, send: Any) -> None:
            scope["client"] = None
            await app(scope, receive, send)

        headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
        return statuses(without_client, "/", headers=headers)[0]

    with caplog.at_level(logging.WARNING, "headgate"):
        assert [through_socket(app, f"203.0.113.{n}") for n in range(2)] == [200, 429]
    assert ["trusted_proxies=['unix']" in line for line in caplog.messages] == [True]
    assert [through_socket(told, f"203.0.113.{n}") for n in range(2)] == [200, 200]
    assert through_socket(told, "198.51.100.1, 203.0.113.1") == 429


def test_keys_by_a_function_and_by_address_where_it_has_none() -> None:
    def api_key(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-key", b"").decode() or None

    app = limited("1/minute", key=api_key)
    assert statuses(app, "/", "/", headers={"x-key": "a"}) == [200, 429]
    assert statuses(app, "/", headers={"x-key": "b"}) == [200]
    assert statuses(app, "/", "/") == [200, 429]  # Counted by its address: nobody escapes.
    assert statuses(app, "/", headers={"x-key": "203.0.113.9"}) == [200]  # No address, but a key.
    assert statuses(app, "/", "/", headers={"x-key": "k" * 20_000}) == [200, 429]


def test_costs_by_a_function_and_a_cost_that_never_fits() -> None:
    app = limited("5/minute", cost=lambda scope: int(dict(scope["headers"]).get(b"x-cost", b"1")))
    assert statuses(app, "/", headers={"x-cost": "3"}) == [200]
    assert statuses(app, "/", headers={"x-cost": "3"}) == [429]
    assert statuses(app, "/", headers={"x-cost": "2"}) == [200]
    (never,) = ask(app, "/", headers={"x-cost": "6"})
    assert never.status_code == 429
    assert "retry-after" not in never.headers
    assert never.json()["detail"] == "this request costs more than its limit ever allows"


def test_a_denied_request_is_charged_by_none_of_several_rates() -> None:
    clock = ManualClock(1_800_000_000)
    app = limited("1/second; 3/hour", limiter=AsyncLimiter(clock=clock), algorithm="fixed_window")
    assert statuses(app, *["/"] * 9) == [200] + [429] * 8
    (last,) = ask(app, "/")
    assert last.headers["ratelimit-policy"] == '"default/1s";q=1;w=1, "default/3600s";q=3;w=3600'
    for expected in (200, 200, 429):  # The hour was charged only for what passed.
        clock.advance(1)
        assert statuses(app, "/") == [expected]


def test_exempt_paths() -> None:
    app = limited("1/minute", exempt=["/sub/*", "/fails"])
    assert statuses(app, "/sub/a", "/sub/b", "/fails", "/", "/") == [200, 200, 500, 200, 429]
    assert statuses(app, "/sub/../items/1", "/failsafe", "/subway") == [429, 429, 429]


def test_headers_can_be_left_out() -> None:
    first, second = ask(limited("1/minute", headers=False), "/", "/")
    assert not [name for name in (*first.headers, *second.headers) if "ratelimit" in name]
    assert int(second.headers["retry-after"]) >= 1


def test_every_method_is_counted() -> None:
    for method in ("HEAD", "OPTIONS", "POST"):
        first, second = ask(limited("1/minute"), "/items/1", "/items/1", method=method)
        assert "ratelimit" in first.headers, method
        assert second.status_code == 429, method


def test_a_handler_that_fails_was_counted_and_fails_as_before() -> None:
    first, second = ask(limited("1/minute"), "/fails", "/fails")
    assert (first.status_code, second.status_code) == (500, 429)


def test_streams_are_not_held_back() -> None:
    sent: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for number in range(3):
            body = {"type": "http.response.body", "body": b"%d" % number, "more_body": True}
            await send(body)
            assert sent[-1] == str(number), "each part leaves before the next one is made"
        await send({"type": "http.response.body"})

    async def send(message: Any) -> None:
        body = message.get("body", b"").decode()
        sent.append(body or message["type"])

    scope = {"type": "http", "path": "/", "client": ("203.0.113.9", 1), "headers": []}
    asyncio.run(RateLimitMiddleware(app, "1/minute")(scope, None, send))  # type: ignore[arg-type]
    assert sent == ["http.response.start", "0", "1", "2", "http.response.body"]
    assert ask(limited(), "/stream")[0].text == "0\n1\n2\n3\n4\n"


def test_background_tasks_run() -> None:
    done: list[int] = []

    async def later(_: Request) -> Response:
        return JSONResponse({}, background=BackgroundTask(done.append, 1))

    app = Starlette(
        routes=[Route("/", later)], middleware=[Middleware(RateLimitMiddleware, rate="1/minute")]
    )
    assert statuses(app, "/", "/") == [200, 429]
    assert done == [1]


def test_websockets_are_counted_and_refused_before_they_are_accepted() -> None:
    client = TestClient(limited("1/minute"))
    with client.websocket_connect("/echo") as websocket:
        websocket.send_text("hello")
        assert websocket.receive_text() == "hello"
        told: dict[bytes, bytes] = dict(websocket.extra_headers or [])
        assert told[b"x-ratelimit-remaining"] == b"0"
    with (
        pytest.raises(Denied) as refused,
        client.websocket_connect("/echo"),
    ):
        pass
    assert refused.value.status_code == 429
    assert refused.value.headers["content-type"] == "application/problem+json"


def test_a_server_that_cannot_answer_websockets_closes_them() -> None:
    inner = limited("1/minute")

    async def old_server(scope: Any, receive: Any, send: Any) -> None:
        scope.get("extensions", {}).clear()
        await inner(scope, receive, send)

    client = TestClient(old_server)
    with client.websocket_connect("/echo") as websocket:
        websocket.send_text("hello")
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/echo"):
        pass
    assert closed.value.code == 1013


RULES = """
rules:
  - {rule_id: items, match: {path_pattern: "/items/*"}, identifier: ip_address, rate: 2/minute}
  - {rule_id: people, match: {path_pattern: "/sub/*"}, identifier: user_id, rate: 1/minute}
"""


def test_rules_decide_by_path_pattern() -> None:
    app = limited(None, rules=RuleSet.parse(RULES))
    assert statuses(app, "/items/1", "/items/2", "/items/3", "/") == [200, 200, 429, 200]
    (denied,) = ask(app, "/%69tems/4")
    assert denied.status_code == 429
    assert denied.json()["violated-policies"] == ["items"]
    assert denied.headers["ratelimit-policy"] == '"items";q=2;w=60'
    assert "ratelimit" not in ask(app, "/")[0].headers


def test_the_key_is_the_user_of_rules() -> None:
    def user(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    app = limited(None, rules=RuleSet.parse(RULES), key=user)
    assert statuses(app, "/sub/a", "/sub/b", headers={"x-user": "ada"}) == [200, 429]
    assert statuses(app, "/sub/a", headers={"x-user": "grace"}) == [200]


def test_a_limiter_with_rules_is_enough() -> None:
    app = limited(None, limiter=AsyncLimiter(rules=RuleSet.parse(RULES)))
    assert statuses(app, "/items/1", "/items/1", "/items/1") == [200, 200, 429]
    shared = AsyncLimiter()
    one, two = (limited(None, limiter=shared, rules=RuleSet.parse(RULES)) for _ in range(2))
    assert statuses(one, "/items/1", "/items/1") == [200, 200]
    assert statuses(two, "/items/1") == [429]


@pytest.mark.parametrize(
    "options, says",
    [
        ({"rate": None}, "no limit"),
        ({"rate": "many"}, "many"),
        ({"rate": "1/minute", "rules": RuleSet.parse(RULES)}, "not both"),
        ({"rate": "1/minute", "limiter": 5}, "AsyncLimiter"),
        ({"rate": "1/minute", "on_error": "pass"}, "on_error"),
        ({"rate": "1/minute", "exempt": "/x"}, "list"),
        ({"rate": "1/minute", "exempt": ["x*"]}, "/static/"),
        ({"rate": "1/minute", "trusted_proxies": "10.0.0.0/8"}, "list"),
        ({"rate": "1/minute", "trusted_proxies": ["10.0.0.1/8"]}, "networks"),
        ({"rate": "1/minute", "cost": -1}, "cost"),
    ],
)
def test_mistakes_raise_when_the_app_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=says):
        RateLimitMiddleware(Starlette(), **options)


def test_a_store_that_is_away_closes_or_opens(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    (closed,) = ask(limited(limiter=url), "/")
    assert closed.status_code == 503
    assert closed.headers["retry-after"] == "1"
    assert closed.json()["status"] == 503
    opened = ask(limited(limiter=url, on_error="open"), "/", "/", "/")
    assert [(one.status_code, one.headers["x-ratelimit-degraded"]) for one in opened] == [
        (200, "open")
    ] * 3
    assert "requests pass" in caplog.text
    counted = ask(limited(limiter=url, on_error="fallback"), "/", "/", "/")
    assert [one.status_code for one in counted] == [200, 200, 429]
    assert {one.headers["x-ratelimit-degraded"] for one in counted} == {"fallback"}


def test_a_limiter_that_raises_is_answered_for_by_the_middleware() -> None:
    (port,) = free_ports(1)
    limiter = AsyncLimiter(f"redis://127.0.0.1:{port}?deadline=0.05")
    assert statuses(limited(limiter=limiter), "/") == [503]
    assert statuses(limited(limiter=limiter, on_error="open"), "/", "/") == [200, 200]
    with pytest.raises(UsageError, match="when you create it"):
        RateLimitMiddleware(Starlette(), "1/minute", limiter=limiter, on_error="fallback")


def test_the_limiter_is_closed_when_the_server_stops(
    redis_servers: Callable[[str], RedisServer],
) -> None:
    app = limited(limiter=redis_servers("valkey-9").url)
    with TestClient(app, client=("203.0.113.9", 1)) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


APP = """
import os
from headgate.integrations.asgi import RateLimitMiddleware

async def hello(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

app = RateLimitMiddleware(hello, "25/hour", limiter=os.environ["REDIS_URL"], exempt=["/ready"])
"""


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_workers_of_one_server_share_one_count(redis_server: RedisServer) -> None:
    """Two workers of uvicorn have to start, each a Python of its own."""
    with (
        serving(
            APP, *UVICORN, "--workers", "2", environment={"REDIS_URL": redis_server.url}
        ) as app,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda _: app.get(), range(60)))
    passed = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert (len(passed), len(refused)) == (25, 35)
    assert sorted(int(one.headers["x-ratelimit-remaining"]) for one in passed) == list(range(25))
