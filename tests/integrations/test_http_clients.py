"""Budgets of outgoing calls: httpx, requests and aiohttp, against a server that counts by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
import requests

from headgate import AsyncLimiter, Limiter, RateLimitExceeded, UsageError
from headgate.integrations._learned_pauses import MAX_PAUSE_S, pause_s
from headgate.integrations.aiohttp import RateLimitClientMiddleware
from headgate.integrations.httpx import AsyncRateLimitTransport, RateLimitTransport
from headgate.integrations.requests import RateLimitAdapter
from tests.integrations.fake_api import FakeApi, fake_api
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import RedisServer

NOW_S = 1_800_000_000.0


def with_httpx(url: str, times: int, **options: Any) -> list[int]:
    with httpx.Client(transport=RateLimitTransport(**options)) as client:
        return [client.get(url).status_code for _ in range(times)]


def with_requests(url: str, times: int, **options: Any) -> list[int]:
    with requests.Session() as session:
        session.mount("http://", RateLimitAdapter(**options))
        return [session.get(url, timeout=30).status_code for _ in range(times)]


def with_httpx_async(url: str, times: int, **options: Any) -> list[int]:
    async def asking() -> list[int]:
        async with httpx.AsyncClient(transport=AsyncRateLimitTransport(**options)) as client:
            answers = await asyncio.gather(*(client.get(url) for _ in range(times)))
            return [answer.status_code for answer in answers]

    return asyncio.run(asking())


def with_aiohttp(url: str, times: int, **options: Any) -> list[int]:
    async def asking() -> list[int]:
        middleware = RateLimitClientMiddleware(**options)

        async def one(session: aiohttp.ClientSession) -> int:
            async with session.get(url) as answer:
                return answer.status

        async with aiohttp.ClientSession(middlewares=[middleware]) as session:
            found = await asyncio.gather(*(one(session) for _ in range(times)))
        await middleware.aclose()
        return found

    return asyncio.run(asking())


CLIENTS: list[Any] = [with_httpx, with_requests, with_httpx_async, with_aiohttp]
ASYNC = (with_httpx_async, with_aiohttp)


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_client_never_exceeds_the_other_side_s_limit(ask: Callable[..., list[int]]) -> None:
    """The server counts by its own clock, so the client's window is a little longer than the server's."""
    with fake_api(5, 0.2) as api:
        assert ask(api.url, 17, rate="5 per 600 ms") == [200] * 17
        assert (len(api.seen), api.refused) == (17, 0)
        assert api.seen[-1] - api.seen[0] > 1.0


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_client_pauses_when_the_other_side_says_so(ask: Callable[..., list[int]]) -> None:
    with fake_api() as api:
        api.answers.append((429, {"Retry-After": "1"}))
        limiter: Any = (AsyncLimiter if ask in ASYNC else Limiter)()
        assert ask(api.url, 1, rate="100/second", limiter=limiter) == [429]
        assert ask(api.url, 2, rate="100/second", limiter=limiter) == [200, 200]
        assert api.seen[1] - api.seen[0] >= 0.9


@on_flavours("redis_server", "valkey-9")
@pytest.mark.parametrize(
    "learner, other", [(with_httpx, with_aiohttp), (with_aiohttp, with_requests)]
)
def test_what_one_client_learned_all_on_the_engine_know(
    redis_server: RedisServer, learner: Callable[..., list[int]], other: Callable[..., list[int]]
) -> None:
    with fake_api() as api:
        api.answers.append((200, {"RateLimit": '"burst";r=0;t=1'}))
        assert learner(api.url, 1, rate="100/second", limiter=redis_server.url) == [200]
        assert other(api.url, 1, rate="100/second", limiter=redis_server.url) == [200]
        assert api.seen[1] - api.seen[0] >= 0.9


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    with fake_api() as api:
        limiter = Limiter()
        options: Any = {"rate": "100/second", "limiter": limiter, "max_wait": 5.0}
        api.answers.extend([(429, {"Retry-After": "30"}), (429, {"Retry-After": "1"})])
        api.together = threading.Barrier(
            2
        )  # Neither has heard of the other's pause when it is sent.
        with (
            httpx.Client(transport=RateLimitTransport(**options)) as client,
            ThreadPoolExecutor(2) as pool,
        ):
            list(pool.map(client.get, [api.url] * 2))
            with pytest.raises(RateLimitExceeded) as raised:
                client.get(api.url)
        assert 20 < raised.value.retry_after <= 30
        assert len(api.seen) == 2


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_wait_that_is_too_long_raises_and_nothing_is_sent(ask: Callable[..., list[int]]) -> None:
    with fake_api() as api:
        with pytest.raises(RateLimitExceeded):
            ask(api.url, 2, rate="1/hour", max_wait=0.1)
        assert len(api.seen) <= 1  # Of tasks that are cancelled the first may not have been sent.


def test_hosts_have_budgets_of_their_own() -> None:
    with fake_api() as one, fake_api() as two:
        transport = RateLimitTransport(rates={"127.0.0.1": "1/hour"}, max_wait=0.0)
        with httpx.Client(transport=transport) as client:
            assert client.get(one.url).status_code == 200
            with pytest.raises(RateLimitExceeded):
                client.get(two.url)
            for _ in range(3):  # No budget, so not counted.
                assert client.get(two.url.replace("127.0.0.1", "localhost")).status_code == 200


def test_a_key_says_what_a_call_is_counted_under() -> None:
    def by_account(request: httpx.Request) -> str | None:
        account: str | None = request.headers.get("x-account")
        return account

    with fake_api() as api:
        transport = RateLimitTransport("1/hour", key=by_account, max_wait=0.0)
        with httpx.Client(transport=transport) as client:
            for account in ("a", "b"):
                assert client.get(api.url, headers={"x-account": account}).status_code == 200
            with pytest.raises(RateLimitExceeded) as raised:
                client.get(api.url, headers={"x-account": "b"})
        assert raised.value.key == "api:b"


def test_mistakes_raise_when_a_client_is_created() -> None:
    for wrong in (
        {},
        {"rate": "many"},
        {"rates": {"a": "many"}},
        {"rate": "1/hour", "max_wait": -1},
    ):
        with pytest.raises(UsageError):
            RateLimitTransport(**wrong)
    with pytest.raises(UsageError):
        AsyncRateLimitTransport("1/hour", limiter=Limiter())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "status, headers, seconds",
    [
        (200, {}, 0),
        (200, {"retry-after": "7"}, 0),  # Of a redirect, or a page that is being made.
        (429, {"retry-after": "7"}, 7),
        (503, {"retry-after": "0.5"}, 0.5),
        (429, {"retry-after": formatdate(NOW_S + 20, usegmt=True)}, 20),
        (429, {"retry-after": formatdate(NOW_S - 20, usegmt=True)}, 0),
        (429, {"retry-after": "soon"}, 0),
        (429, {"retry-after": "-7"}, 0),
        (429, {"retry-after": "9" * 400}, 0),
        (429, {"retry-after": "999999"}, MAX_PAUSE_S),
        (200, {"ratelimit": '"burst";r=0;t=30, "day";r=5;t=900'}, 30),
        (200, {"ratelimit": '"burst";r=1;t=30'}, 0),
        (200, {"ratelimit": "limit=10, remaining=0, reset=12"}, 12),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "12"}, 12),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "12"}, 12),
        (200, {"x-ratelimit-remaining": "1", "x-ratelimit-reset": "12"}, 0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW_S) + 9)}, 9),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{int(NOW_S) + 9}000"}, 9),
        (
            200,  # Their clock is an hour ahead.
            {
                "date": formatdate(NOW_S + 3600, usegmt=True),
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": str(int(NOW_S) + 3609),
            },
            9,
        ),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "tomorrow"}, 0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW_S) - 9)}, 0),
    ],
)
def test_what_the_other_side_says_is_understood(
    status: int, headers: dict[str, str], seconds: float
) -> None:
    assert pause_s(status, headers, NOW_S) == pytest.approx(seconds)


SCRIPT = """
import sys
import httpx
from headgate.integrations.httpx import RateLimitTransport

url, redis = sys.argv[1:]
with httpx.Client(transport=RateLimitTransport(rate="8/second", limiter=redis)) as client:
    print(sum(client.get(url).status_code == 429 for _ in range(12)))
"""


def _run(api: FakeApi, redis: str) -> str:
    command = [sys.executable, "-c", SCRIPT, api.url, redis]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
def test_four_processes_share_one_budget_and_never_see_a_429(redis_server: RedisServer) -> None:
    """48 calls of 8 a second have to be made, and a busy machine needs room."""
    with fake_api(8, 0.3) as api, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _run(api, redis_server.url), range(4)))
        assert [int(refused) for refused in found] == [0] * 4
        assert (len(api.seen), api.refused) == (48, 0)
