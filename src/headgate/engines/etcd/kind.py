"""The etcd engine in the registry. Importing this does not import the engine, which needs an extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from ..base import BoardPlace, EngineDescription
from .options import parse_url
from .storable import why_not_storable

if TYPE_CHECKING:
    import logging

    from ...clock import Clock
    from ..base import AsyncEngine, Engine
    from ..meter import Meter
    from ..registry import NodeDoor
    from .options import EtcdOptions


class EtcdKind:
    """Counts on etcd, decided by the node that owns the key's shard."""

    schemes = ("etcd",)
    shared = True
    one_per_service = True
    board = "headgate.board.etcd"

    def for_node(self, url: str, door: NodeDoor) -> str:
        """See `EngineKind.for_node`: other nodes reach it there, unless the URL says otherwise."""
        options = parse_url(url)
        if door.needs_token and options.peer_token_file is None:
            raise ConfigError(
                "the nodes of this service ask for tokens, also each other; "
                "name a file with one of the role operator as peer_token_file"
            )
        added = [] if options.listen else [f"listen={door.address}"]
        if door.tls and not (options.peer_tls or options.peer_ca_file):
            added.append("peer_tls=yes")
        return "&".join([url if "?" in url else f"{url}?", *added]).replace("?&", "?")

    def adopts(self, value: object) -> bool:
        """See `EngineKind.adopts`."""
        return False

    def describe(self, url: str) -> EngineDescription:
        """See `EngineKind.describe`."""
        return description_of(parse_url(url))

    def open(self, source: str | Any, clock: Clock | None, logger: logging.Logger | None) -> Engine:
        """See `EngineKind.open`."""
        made: Engine = etcd_module("sync").EtcdEngine(source, clock=clock)
        return made

    def open_async(
        self, source: str | Any, clock: Clock | None, logger: logging.Logger | None
    ) -> AsyncEngine:
        """See `EngineKind.open_async`."""
        made: AsyncEngine = etcd_module("aio").AsyncEtcdEngine(source, clock=clock)
        return made


KIND: Final = EtcdKind()


def description_of(
    options: EtcdOptions, meter: Meter | None = None, namespace: str = ""
) -> EngineDescription:
    """The description of an etcd engine with these options."""
    policy = options.policy
    lost = (
        "nothing that was answered is lost while etcd keeps what it confirmed"
        if policy.exact
        else f"at most {policy.unconfirmed} decisions more in all, and no more than the limit for a key"
    )
    return EngineDescription(
        store="etcd",
        shared=True,
        promise="each limit as its algorithm guarantees, over all nodes of the cluster",
        when_lost=("node dies", lost),
        refuses=why_not_storable,
        meter=meter,
        deadline=options.deadline,
        event_loops="one",
        board=BoardPlace(KIND.board, options, namespace),
    )


def etcd_module(name: str) -> Any:
    """Import a module that needs the extra."""
    try:
        return importlib.import_module(f"headgate.engines.etcd.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "aetcd"):
            raise
        raise ConfigError("etcd:// needs an extra: pip install 'headgate[etcd]'") from error
