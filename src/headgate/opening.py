"""Opening: from a URL, a client or an engine to an engine with its guards around it."""

from __future__ import annotations

import inspect
import logging
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from .engines.base import Awaited
from .engines.url import open_memory
from .errors import ConfigError, UsageError
from .guards.deny_cache import AsyncDenyCache, DenyCache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .clock import Clock
    from .engines.base import AsyncEngine, Engine
    from .engines.redis.aio import AsyncRedisEngine
    from .engines.redis.sync import RedisEngine

T = TypeVar("T")
DEFAULT_REDIS: Final = "redis://localhost:6379/0"


def url_from_env(environ: Mapping[str, str] | None = None) -> str:
    """The engine that the environment names: `HEADGATE_ENGINE`, else `REDIS_URL`, else a local Redis."""
    found = os.environ if environ is None else environ
    return found.get("HEADGATE_ENGINE") or found.get("REDIS_URL") or DEFAULT_REDIS


def logger_of(given: object) -> logging.Logger:
    """The logger that a limiter was given, or ours; anything that can be told the same will do."""
    if given is None:
        return logging.getLogger("headgate")
    if not all(callable(getattr(given, level, None)) for level in ("debug", "warning")):
        raise UsageError(f"a logger is a logging.Logger, not {given!r}")
    return cast("logging.Logger", given)


def open_engine(
    engine: str | Engine | Any, clock: Clock | None, logger: logging.Logger | None = None
) -> Engine:
    """An engine for threads and plain functions."""
    if isinstance(engine, str):
        if _scheme(engine) == "memory":
            return open_memory(engine, clock)
        opened: RedisEngine = _redis("sync").RedisEngine(engine, clock=clock, logger=logger)
        return DenyCache(opened) if opened.options.deny_cache else opened
    if is_client(engine):
        options = _options_of(engine)
        return DenyCache(_redis("sync").RedisEngine(options, clock=clock, logger=logger))
    taken: Engine = _as_it_is(engine, clock)
    return taken


def open_async_engine(
    engine: str | Engine | AsyncEngine | Any,
    clock: Clock | None,
    logger: logging.Logger | None = None,
) -> AsyncEngine:
    """An engine for asyncio: one made for it, or one that never blocks."""
    if isinstance(engine, str):
        if _scheme(engine) == "memory":
            return Awaited(open_memory(engine, clock))
        opened: AsyncRedisEngine = _redis("aio").AsyncRedisEngine(
            engine, clock=clock, logger=logger
        )
        return AsyncDenyCache(opened) if opened.options.deny_cache else opened
    if is_client(engine):
        options = _options_of(engine)
        return AsyncDenyCache(_redis("aio").AsyncRedisEngine(options, clock=clock, logger=logger))
    taken: Any = _as_it_is(engine, clock)
    if inspect.iscoroutinefunction(taken.decide):
        made_for_it: AsyncEngine = taken
        return made_for_it
    return Awaited(taken, in_threads=taken.blocking)


def _as_it_is(engine: T, clock: Clock | None) -> T:
    if not hasattr(engine, "decide"):
        raise UsageError(f"an engine is a URL, a Redis client or an Engine, not {engine!r}")
    if clock is not None:
        raise UsageError("an engine brings its own clock; give the clock to the engine instead")
    return engine


def _scheme(url: str) -> str:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # Its message may quote a password.
        raise ConfigError(
            "the engine's URL cannot be read; see the brackets of its address"
        ) from None
    if scheme != "memory" and not scheme.startswith(("redis", "valkey")):
        wrong = f"no engine is called {scheme!r}" if scheme else "an engine is named by a URL"
        raise ConfigError(
            f"{wrong}; there are memory:// and redis:// (and valkey://, "
            "redis+unix://, redis+sentinel://, redis+cluster://, rediss:// with TLS)"
        )
    return scheme


def _redis(module: str) -> Any:
    """The Redis engine, which only those who use it need to have installed."""
    import importlib  # noqa: PLC0415 - part of being lazy

    try:
        return importlib.import_module(f"headgate.engines.redis.{module}")
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise ConfigError("redis:// needs an extra: pip install 'headgate[redis]'") from error


def is_client(value: object) -> bool:
    """Whether this looks like a client of redis-py or valkey-py, sync or async, plain or Cluster, or like its pool."""
    return any(
        hasattr(value, name) for name in ("connection_pool", "nodes_manager", "connection_kwargs")
    )


def _options_of(client: Any) -> Any:
    return _redis("client").options_of(client)
