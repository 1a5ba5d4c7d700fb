"""Limits as dependencies of FastAPI, on its routes, routers, apps and mounts."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.requests import HTTPConnection  # noqa: TC002 - FastAPI reads it

from headgate import AsyncLimiter, UsageError
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.fastapi import (
    RESPONSES,
    RateLimitError,
    default_settings,
    forget_default_settings,
    install,
    limit,
    together,
)
from headgate.testing import ManualClock
from tests.integrations.serving import UVICORN, Denied, TestClient, ask, serving, statuses
from tests.servers.fixtures import on_flavours
from tests.servers.process import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer

NOW = 1_800_000_000


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget_default_settings()
    yield
    forget_default_settings()


def by_user(connection: HTTPConnection) -> str | None:
    return connection.headers.get("x-user")


def by_team(connection: HTTPConnection) -> str | None:
    return connection.headers.get("x-team")


def app_with(dependency: Any, path: str = "/", **options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.get(path, dependencies=[Depends(dependency)])
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def test_an_endpoint_needs_no_request_and_has_headers() -> None:
    app = app_with(limit("2/minute"))
    first, second, third = ask(app, "/", "/", "/")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.json() == {"hello": "world"}
    assert first.headers["ratelimit-policy"] == '"GET /";q=2;w=60'
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert "retry-after" not in second.headers
    wait = int(third.headers["retry-after"])
    assert third.headers["content-type"] == "application/problem+json"
    assert third.json() == {"detail": f"rate limit exceeded; try again in {wait} seconds"}
    assert third.headers["x-ratelimit-remaining"] == "0"


def test_installed_a_refusal_is_a_whole_problem() -> None:
    app = app_with(limit("1/minute"))
    install(app)
    _, denied = ask(app, "/", "/")
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.json()["violated-policies"] == ["GET /"]
    assert denied.json()["status"] == denied.status_code == 429


def test_concrete_urls_share_the_count_of_their_route_and_routes_do_not() -> None:
    app = FastAPI()
    shared = limit("1/minute")

    @app.get("/items/{item}", dependencies=[Depends(shared)])
    @app.post("/items/{item}", dependencies=[Depends(shared)])
    def item(item: int) -> int:
        return item

    assert statuses(app, "/items/1", "/items/2", "/items/3?x=1") == [200, 429, 429]
    assert statuses(app, "/items/1", "/items/2", method="POST") == [200, 429]


def test_a_scope_shares_one_count() -> None:
    app = FastAPI(dependencies=[Depends(limit("2/minute", scope="everything"))])

    @app.get("/a")
    @app.get("/b")
    async def hello() -> None: ...

    first, second, third = ask(app, "/a", "/b", "/a")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["ratelimit-policy"] == '"everything";q=2;w=60'


def test_routers_take_their_limits_along_wherever_they_are_included() -> None:
    router = APIRouter(prefix="/items", dependencies=[Depends(limit("1/minute"))])

    @router.get("/{item}")
    async def item(item: int) -> int:
        return item

    app = FastAPI()
    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/v2")
    assert statuses(app, "/v1/items/1", "/v1/items/2", "/v2/items/1", "/v2/items/2") == [
        *(200, 429),
        *(200, 429),
    ]
    (denied,) = ask(app, "/v1/items/7")
    assert denied.headers["ratelimit-policy"] == '"GET /v1/items/{item}";q=1;w=60'


def test_apps_take_their_limits_along_wherever_they_are_mounted() -> None:
    inner = app_with(limit("1/minute"), "/{name}")
    outer = FastAPI()
    outer.mount("/one", inner)
    outer.mount("/two/{tenant}", inner)
    install(outer, limiter=AsyncLimiter())
    assert statuses(outer, "/one/a", "/one/b", "/one/c") == [200, 429, 429]
    assert statuses(outer, "/two/1/a", "/two/1/b", "/two/2/c") == [200, 429, 429]
    (denied,) = ask(outer, "/two/3/a")
    assert denied.headers["ratelimit-policy"] == '"GET /two/{tenant}/{name}";q=1;w=60'


@pytest.mark.parametrize(
    "mount, paths",
    [
        ("/tenants/{tenant:int}", ["/tenants/7", "/tenants/07", "/tenants/007"]),
        ("/tenants/{tenant}", ["/tenants/1", "/tenants/tenants", "/tenants/items"]),
        ("/tenants/{tenant:path}/in", ["/tenants/a/in", "/tenants/a/b/in", "/tenants/c/b/in"]),
        ("/tenants/{item}", ["/tenants/1", "/tenants/2", "/tenants/3"]),
    ],
)
def test_no_spelling_of_what_an_app_is_mounted_under_has_a_count_of_its_own(
    mount: str, paths: list[str]
) -> None:
    inner = app_with(limit("1/minute"), "/items/{item}")
    outer, router = FastAPI(), APIRouter()
    outer.mount(mount, inner)
    router.mount(mount, inner)
    outer.include_router(router, prefix="/v2")
    outer.mount("/wrapped", outer.__call__)  # Nobody can look into a function.
    for prefix in ("", "/v2"):
        asked = [f"{prefix}{path}/items/{number}" for number, path in enumerate(paths)]
        denied = ask(outer, *asked)[-1]
        assert statuses(outer, *asked) == [429] * 3
        policy = f'"GET {prefix}{mount.partition(":")[0]}'
        assert denied.headers["ratelimit-policy"].startswith(policy)
    assert statuses(outer, *(f"/wrapped{path}/items/1" for path in paths)) == [200, 429, 429]


def test_limits_of_an_app_that_do_not_cover_its_mounts_cause_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI(dependencies=[Depends(limit("1/minute"))])
    app.mount("/static", PlainTextResponse("file"))
    install(app)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert statuses(app, "/static/1", "/static/2") == [200, 200]
    assert ["/static; use headgate.integrations.asgi" in line for line in caplog.messages] == [True]


def test_keys_and_costs_by_functions_sync_and_async() -> None:
    async def cost(connection: HTTPConnection) -> int:
        return int(connection.query_params["cost"])

    app = app_with(limit("3/minute", key=by_user, cost=cost))
    assert statuses(app, "/?cost=3", "/?cost=1", headers={"x-user": "ada"}) == [200, 429]
    assert statuses(app, "/?cost=2", "/?cost=2", headers={"x-user": "bob"}) == [200, 429]
    assert statuses(app, "/?cost=3", "/?cost=1") == [200, 429]  # By address.
    (never,) = ask(app, "/?cost=4")
    assert never.status_code == 429
    assert "retry-after" not in never.headers


def test_limits_charged_together_are_charged_by_all_or_none() -> None:
    limiter = AsyncLimiter(clock=ManualClock(NOW))
    both = together(
        limit("2/minute", key=by_user, limiter=limiter),
        limit("3/minute", key=by_team, limiter=limiter),
    )
    app = app_with(both)

    def status(user: str) -> int:
        return statuses(app, "/", headers={"x-user": user, "x-team": "7"})[0]

    assert [status("7") for _ in range(5)] == [200, 200, 429, 429, 429]
    assert [status("8") for _ in range(2)] == [200, 429]  # Denials of user 7 cost the team nothing.
    (told,) = ask(app, "/", headers={"x-user": "9", "x-team": "8"})
    assert told.headers["ratelimit-policy"] == '"GET /";q=2;w=60, "GET /#2";q=3;w=60'
    with pytest.raises(UsageError, match="takes what limit"):
        together("1/minute")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one limiter"):
        together(limit("1/minute", limiter=limiter), limit("1/minute"))


def test_several_limits_report_all_policies_and_the_tightest() -> None:
    app = FastAPI(dependencies=[Depends(limit("2/minute", scope="app"))])

    @app.get("/", dependencies=[Depends(limit("9/minute"))])
    async def hello() -> None: ...

    (first,) = ask(app, "/")
    assert first.headers["ratelimit-policy"] == '"app";q=2;w=60, "GET /";q=9;w=60'
    assert first.headers.get_list("x-ratelimit-remaining") == ["1"]


def test_with_the_middleware_around_there_is_one_trio() -> None:
    inner = app_with(limit("2/minute"))
    app = RateLimitMiddleware(inner, "10/minute")
    (first,) = ask(app, "/")
    assert first.headers.get_list("x-ratelimit-limit") == ["2"]
    assert first.headers["ratelimit-policy"] == '"GET /";q=2;w=60, "default";q=10;w=60'


def test_responses_that_endpoints_make_have_headers_when_installed() -> None:
    app = FastAPI()
    guard = Depends(limit("10/minute"))

    @app.get("/own", dependencies=[guard])
    async def own() -> PlainTextResponse:
        return PlainTextResponse("own")

    @app.get("/stream", dependencies=[guard])
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["a", "b"]))

    @app.get("/fails", dependencies=[guard])
    async def fails() -> None:
        raise HTTPException(418)

    install(app)
    for path, status in (("/own", 200), ("/stream", 200), ("/fails", 418)):
        (answer,) = ask(app, path)
        assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (status, "9"), path


def test_websockets() -> None:
    app = FastAPI()

    @app.websocket("/echo", dependencies=[Depends(limit("1/minute"))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    client = TestClient(app)
    with client.websocket_connect("/echo") as websocket:
        websocket.send_text("hello")
        assert websocket.receive_text() == "hello"
    with pytest.raises(Denied) as refused, client.websocket_connect("/echo"):
        pass
    assert refused.value.status_code == 429
    assert int(refused.value.headers["retry-after"]) >= 1


def test_openapi_shows_429_where_there_is_a_limit() -> None:
    app = app_with(limit("1/minute"))
    router = APIRouter(prefix="/r", dependencies=[Depends(together(limit("1/minute")))])

    @router.post("/{name}")
    async def routed(name: str) -> str:
        return name

    @app.get("/free")
    async def free() -> None: ...

    @app.get("/described", responses=RESPONSES)
    async def described() -> None: ...

    app.include_router(router, prefix="/v1")
    install(app)
    paths = app.openapi()["paths"]
    assert "429" in paths["/"]["get"]["responses"]
    assert "429" in paths["/v1/r/{name}"]["post"]["responses"]
    assert "429" not in paths["/free"]["get"]["responses"]
    told = paths["/described"]["get"]["responses"]["429"]
    assert "application/problem+json" in told["content"]
    assert "Retry-After" in told["headers"]


def test_an_app_can_answer_in_its_own_words() -> None:
    app = app_with(limit("1/minute"))

    @app.exception_handler(RateLimitError)
    async def answer(_: Any, error: RateLimitError) -> PlainTextResponse:
        assert error.decision is not None
        return PlainTextResponse(f"slow down: {error.decision.limit}", 429, error.headers)

    _, denied = ask(app, "/", "/")
    assert denied.text == "slow down: 1"
    assert "retry-after" in denied.headers


def test_proxies_are_trusted_only_if_they_are_configured() -> None:
    spoofed = {"x-forwarded-for": "198.51.100.1"}
    app = app_with(limit("1/minute"))
    assert statuses(app, "/") == [200]
    assert statuses(app, "/", headers=spoofed) == [429]
    named = app_with(limit("1/minute"))
    install(named, trusted_proxies=["203.0.113.0/24"])
    assert statuses(named, "/") == [200]
    assert statuses(named, "/", "/", headers=spoofed) == [200, 429]


def test_mistakes_raise_when_the_app_is_created() -> None:
    for wrong in ({"rate": "many"}, {"rate": "1/minute", "on_error": "x"}, {"rate": "", "cost": 1}):
        with pytest.raises(UsageError):
            limit(**wrong)


def test_a_store_that_is_away_closes_or_opens() -> None:
    (port,) = free_ports(1)
    limiter = AsyncLimiter(f"redis://127.0.0.1:{port}")
    (closed,) = ask(app_with(limit("1/minute", limiter=limiter)), "/")
    assert (closed.status_code, closed.headers["retry-after"]) == (503, "1")
    both = together(limit("1/minute", limiter=limiter), limit("2/hour", limiter=limiter))
    assert statuses(app_with(both), "/") == [503]
    opened = limit("1/minute", limiter=limiter, on_error="open")
    assert statuses(app_with(opened), "/", "/") == [200, 200]


def test_threads_that_come_first_share_one_count() -> None:
    """Two limiters, each made by the first request of a thread, would admit the limit twice."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            forget_default_settings()
            ready = Barrier(4)

            def first(_: int, start: Barrier = ready) -> int:
                start.wait()
                return id(default_settings())

            with ThreadPoolExecutor(4) as pool:
                assert len(set(pool.map(first, range(4)))) == 1
    finally:
        sys.setswitchinterval(interval_s)


def test_a_count_is_exact_under_many_requests_at_once() -> None:
    client = TestClient(app_with(limit("50/hour")), client=("203.0.113.9", 1))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.get("/").status_code, range(120)))
    assert found.count(200) == 50


APP = """
import os
from fastapi import Depends, FastAPI
from headgate.integrations.fastapi import install, limit

app = FastAPI()
install(app, limiter=os.environ["REDIS_URL"])

@app.get("/items/{item}", dependencies=[Depends(limit("25/hour"))])
def item(item: int):
    return os.getpid()
"""


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
def test_workers_of_one_server_share_one_count(redis_server: RedisServer) -> None:
    """Two workers of uvicorn have to start, each a Python of its own."""
    with (
        serving(
            APP, *UVICORN, "--workers", "2", environment={"REDIS_URL": redis_server.url}
        ) as app,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda n: app.get(f"/items/{n}"), range(60)))
    passed = [answer for answer in answers if answer.status_code == 200]
    assert len(passed) == 25
    assert sum(answer.status_code == 429 for answer in answers) == 35
    assert sorted(int(one.headers["x-ratelimit-remaining"]) for one in passed) == list(range(25))
