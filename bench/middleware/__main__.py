"""`python -m bench.middleware`: what a limit adds to one request, in this process, without a server or a socket.

Every app answers the same ASGI request. They take turns in short rounds, and of each app the fastest round counts, so
that whatever else the machine does weighs on all of them alike. Rounds are shorter than what a busy machine gives a
process at once. On Redis, 64 requests are under way at once, as in a busy server: that is when a batch is sent.
"""

from __future__ import annotations

import argparse
import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import redis.asyncio
from fastapi import Depends, FastAPI

from bench.harness import frozen_heap, table
from bench.middleware.peers import fastapi_limiter_app, slowapi_app
from headgate import AsyncLimiter
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.fastapi import limit
from tests.servers.fixtures import installed
from tests.servers.redis import standalone

if TYPE_CHECKING:
    from headgate.integrations.asgi import App

RATE = "1000000000/hour"
CALLERS = 64
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"app"), (b"accept", b"*/*")],
    "client": ("203.0.113.9", 1234),
    "server": ("127.0.0.1", 80),
}
TARGETS_US = {
    "ASGI middleware": 5.0,
    "FastAPI dependency": 20.0,
    "ASGI middleware, Redis": 25.0,
}
"""What each may add to its bare app."""
TIMES_LESS = 5.0
"""How many times less the middleware is to add than the best peer."""


class Contender(NamedTuple):
    """An app, and the one that it is compared with."""

    app: App
    base: str
    peer: bool = False


async def bare(_scope: Any, _receive: Any, send: Any) -> None:
    """The least an app can do."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def fastapi_app(*dependencies: Any) -> FastAPI:
    """One trivial endpoint."""
    app = FastAPI()

    @app.get("/", dependencies=[Depends(one) for one in dependencies])
    async def hello() -> str:
        return "ok"

    return app


async def nothing() -> None:
    """A dependency that does nothing."""


async def apps_in_memory() -> dict[str, Contender]:
    """Everybody who counts in this process."""
    return {
        "bare ASGI": Contender(bare, "bare ASGI"),
        "ASGI middleware": Contender(RateLimitMiddleware(bare, rate=RATE), "bare ASGI"),
        "bare FastAPI": Contender(fastapi_app(), "bare FastAPI"),
        "ASGI middleware on FastAPI": Contender(
            RateLimitMiddleware(fastapi_app(), rate=RATE), "bare FastAPI"
        ),
        "empty FastAPI dependency": Contender(fastapi_app(nothing), "bare FastAPI"),
        "FastAPI dependency": Contender(fastapi_app(limit(RATE)), "bare FastAPI"),
        "slowapi": Contender(slowapi_app(), "bare FastAPI", peer=True),
        "fastapi-limiter": Contender(await fastapi_limiter_app(), "bare FastAPI", peer=True),
    }


async def apps_on_redis(url: str, limiter: AsyncLimiter, client: Any) -> dict[str, Contender]:
    """Everybody who counts on Redis."""
    base = "bare FastAPI, 64 at once"
    return {
        base: Contender(fastapi_app(), base),
        "ASGI middleware, Redis": Contender(
            RateLimitMiddleware(fastapi_app(), rate=RATE, limiter=limiter), base
        ),
        "FastAPI dependency, Redis": Contender(fastapi_app(limit(RATE, limiter=limiter)), base),
        "slowapi, Redis": Contender(slowapi_app(url), base, peer=True),
        "fastapi-limiter, Redis": Contender(await fastapi_limiter_app(client), base, peer=True),
    }


async def receive() -> dict[str, Any]:
    """A request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


class Answers:
    """What an app sends."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    async def __call__(self, message: Any) -> None:
        """Keep the status."""
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def measure(
    contenders: dict[str, Contender], rounds: int, requests: int, callers: int = 1
) -> dict[str, float]:
    """Microseconds of one request, by app."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, contender in contenders.items():
            answers = Answers()
            began = perf_counter_ns()
            if callers == 1:
                for _ in range(requests):
                    await contender.app(dict(SCOPE), receive, answers)
            else:
                calls = (contender.app(dict(SCOPE), receive, answers) for _ in range(callers))
                await asyncio.gather(*calls)
            took = (perf_counter_ns() - began) / len(answers.statuses) / 1_000
            if set(answers.statuses) != {200}:
                raise RuntimeError(f"{name} answered {set(answers.statuses)}")
            best[name] = min(took, best.get(name, took))
    return best


async def measure_all(rounds: int, requests: int) -> tuple[dict[str, Contender], dict[str, float]]:
    """In memory, and then on Redis."""
    contenders = await apps_in_memory()
    best = await measure(contenders, rounds, requests)
    with installed(), standalone("valkey-9") as server:
        client = redis.asyncio.Redis.from_url(server.url)
        async with AsyncLimiter(server.url) as limiter:
            on_redis = await apps_on_redis(server.url, limiter, client)
            best |= await measure(on_redis, max(1, rounds // 8), 1, CALLERS)
        await client.aclose()
    return contenders | on_redis, best


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Measure, and print what each limit adds."""
    parser = argparse.ArgumentParser(prog="bench.middleware", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--requests", type=int, default=30, help="requests in one round")
    chosen = parser.parse_args(arguments)
    with frozen_heap():
        contenders, best = asyncio.run(measure_all(chosen.rounds, chosen.requests))
    added = {name: best[name] - best[one.base] for name, one in contenders.items()}
    rows = [
        (name, f"{best[name]:.1f}", f"{added[name]:.1f}", f"{TARGETS_US.get(name, '')}")
        for name in contenders
    ]
    print(table("A limit on one request, in µs", ["app", "request", "added", "at most"], rows))
    for ours, store in (
        ("ASGI middleware on FastAPI", "in memory"),
        ("ASGI middleware, Redis", "on Redis"),
    ):
        base = contenders[ours].base
        peers = {
            name: added[name] for name, one in contenders.items() if one.peer and one.base == base
        }
        closest = min(peers, key=lambda name: peers[name])
        ratio = peers[closest] / max(added[ours], 0.001)
        print(
            f"{store}: the middleware adds {ratio:.1f} times less than {closest} ({TIMES_LESS:g})"
        )
    return added


if __name__ == "__main__":
    main()
