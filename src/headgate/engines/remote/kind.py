"""The remote engine as the registry knows it. Importing this does not import the engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from ..base import EngineDescription
from .options import SCHEMES, parse_url

if TYPE_CHECKING:
    import logging

    from ...clock import Clock
    from ..base import AsyncEngine, Engine
    from ..redis.options import Options
    from ..registry import NodeDoor


class RemoteKind:
    """Running nodes, by the addresses of their Redis protocol."""

    schemes = SCHEMES
    shared = True
    one_per_service = False
    board = ""

    def for_node(self, url: str, door: NodeDoor) -> str:
        """See `EngineKind.for_node`."""
        return url

    def adopts(self, value: object) -> bool:
        """See `EngineKind.adopts`."""
        return False

    def describe(self, url: str) -> EngineDescription:
        """See `EngineKind.describe`."""
        return description_of(parse_url(url))

    def open(self, source: str, clock: Clock | None, logger: logging.Logger | None) -> Engine:
        """See `EngineKind.open`."""
        made: Engine = _engine().RemoteEngine(parse_url(source), clock=clock, logger=logger)
        return made

    def open_async(
        self, source: str, clock: Clock | None, logger: logging.Logger | None
    ) -> AsyncEngine:
        """See `EngineKind.open_async`."""
        made: AsyncEngine = _engine().AsyncRemoteEngine(
            parse_url(source), clock=clock, logger=logger
        )
        return made


KIND: Final = RemoteKind()


def description_of(options: Options) -> EngineDescription:
    """The description of a remote engine."""
    return EngineDescription(
        store="headgate",
        shared=True,
        promise="the promise of the nodes' engine, over all of their clients",
        when_lost=("a node", "another node is used, if the URL lists more; unanswered requests may have been charged"),
        round_trips=True,
        deny_cache=options.deny_cache,
        deadline=options.deciding,
        event_loops="each",
    )  # fmt: skip


def _engine() -> Any:
    try:
        return importlib.import_module("headgate.engines.remote.engine")
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise ConfigError("headgate:// needs an extra: pip install 'headgate[redis]'") from error
