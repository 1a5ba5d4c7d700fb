"""The Redis engine's entry in the registry: its schemes, how to open it, and its description.

Importing this does not import the engine, which needs an extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from ..base import BoardPlace, EngineDescription
from .client import is_client, options_of
from .options import SCHEMES, parse_url

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from ...clock import Clock
    from ..base import AsyncEngine, Engine
    from ..meter import Meter
    from ..registry import NodeDoor
    from .options import Options


class RedisKind:
    """Redis or Valkey, by URL or by a client of redis-py or valkey-py."""

    schemes = (*SCHEMES, *(name.replace("redis", "valkey") for name in SCHEMES))
    shared = True
    one_per_service = False
    board = "headgate.board.redis"

    def for_node(self, url: str, door: NodeDoor) -> str:
        """See `EngineKind.for_node`."""
        return url

    def adopts(self, value: object) -> bool:
        """See `EngineKind.adopts`."""
        return is_client(value)

    def describe(self, url: str) -> EngineDescription:
        """See `EngineKind.describe`."""
        return description_of(parse_url(url))

    def open(self, source: str | Any, clock: Clock | None, logger: logging.Logger | None) -> Engine:
        """See `EngineKind.open`."""
        made: Engine = _module("sync").RedisEngine(_options(source), clock=clock, logger=logger)
        return made

    def open_async(
        self, source: str | Any, clock: Clock | None, logger: logging.Logger | None
    ) -> AsyncEngine:
        """See `EngineKind.open_async`."""
        made: AsyncEngine = _module("aio").AsyncRedisEngine(
            _options(source), clock=clock, logger=logger
        )
        return made


KIND: Final = RedisKind()


def description_of(
    options: Options,
    meter: Meter | None = None,
    in_part: Callable[[], bool] | None = None,
    namespace: str = "",
) -> EngineDescription:
    """The description of a Redis engine with these options."""
    restart = ("restart", "Redis without AOF loses counts: each limit can then be used once more")
    failover = (
        "failover",
        "at most min(limit, rate × replication lag) more for each failover in the window",
    )
    return EngineDescription(
        store="redis",
        shared=True,
        promise="each limit as its algorithm guarantees, over all processes that share the store",
        when_lost=restart if options.topology == "standalone" else failover,
        round_trips=True,
        deny_cache=options.deny_cache,
        meter=meter,
        deadline=options.deciding,
        in_part=in_part,
        event_loops="each",
        board=BoardPlace(KIND.board, options, namespace),
    )


def _options(source: str | Any) -> Options:
    return parse_url(source) if isinstance(source, str) else options_of(source)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"headgate.engines.redis.{name}")
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise ConfigError("redis:// needs an extra: pip install 'headgate[redis]'") from error
