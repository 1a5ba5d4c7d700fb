"""The limiters that FastAPI applications use today, set up as their documentation has it."""

from __future__ import annotations

import warnings
from typing import Any

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Duration, InMemoryBucket, Limiter as PyrateLimiter, Rate, RedisBucket

with warnings.catch_warnings():  # It reads a file of settings that need not be there.
    warnings.simplefilter("ignore")
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

LIMIT = 1_000_000_000


def slowapi_app(storage: str = "memory://") -> FastAPI:
    """Slowapi with its ASGI middleware, a limit for all routes and headers."""
    app = FastAPI()
    app.state.limiter = Limiter(
        key_func=get_remote_address,
        default_limits=[f"{LIMIT}/hour"],
        headers_enabled=True,
        storage_uri=storage,
    )
    app.add_middleware(SlowAPIASGIMiddleware)

    @app.get("/")
    async def hello() -> str:
        return "ok"

    return app


async def fastapi_limiter_app(redis: Any = None) -> FastAPI:
    """fastapi-limiter's dependency, which tells nothing in headers. It keeps a log, so its limit is small."""
    rates = [Rate(10_000, Duration.SECOND)]
    if redis is None:
        bucket: Any = InMemoryBucket(rates)
    else:
        bucket = await RedisBucket.init(rates, redis, "bench")
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimiter(PyrateLimiter(bucket)))])
    async def hello() -> str:
        return "ok"

    return app
