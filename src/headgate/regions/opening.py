"""Opening what a region knows of all regions: it lies where the board lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engines.etcd.options import parse_url
from ..engines.registry import kind_of
from ..errors import ConfigError
from .store import MemoryRegionStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rights_steps import RightsSteps
    from .store import RegionStore


def open_region_store(
    board: str, engine: str, namespace: str, now_us: Callable[[], int]
) -> RegionStore:
    """The store beside the board that the URL `board` names, or without one beside the engine.

    A store without a clock uses `now_us`.
    """
    url = board or engine
    beside = kind_of(url).board
    if beside == "headgate.board.memory":
        return MemoryRegionStore()
    if beside == "headgate.board.redis":
        from .redis_store import RedisRegionStore  # noqa: PLC0415 - only who uses Redis needs its client

        return RedisRegionStore(url, namespace=namespace)
    if beside == "headgate.board.etcd":
        from .etcd_store import EtcdRegionStore  # noqa: PLC0415 - as above

        return EtcdRegionStore(url, now_us, namespace=namespace)
    raise ConfigError("what regions tell each other is kept in Redis or etcd; name one in 'board'")


def keeps_rights(engine: str) -> bool:
    """Whether rights can be kept where the counts are: in one store, which loses all of them or none.

    Each part of a Redis Cluster could lose its counts by itself, and each of several etcd clusters. An etcd engine that
    answers before it has confirmed could lose what it has taken off.
    """
    beside = kind_of(engine).board
    if beside == "headgate.board.etcd":
        options = parse_url(engine)
        return options.policy.exact and len(options.parts) == 1
    return beside == "headgate.board.redis" and "cluster" not in engine.partition("://")[0]


def open_rights_store(engine: str, namespace: str = "") -> RightsSteps | None:
    """Where rights are kept beside the counts of this engine; `None` if they cannot be."""
    if not keeps_rights(engine):
        return None
    if kind_of(engine).board == "headgate.board.etcd":
        from .etcd_rights import EtcdRightsStore  # noqa: PLC0415 - only who uses etcd needs its client

        return EtcdRightsStore(engine, namespace)
    from .rights_store import RightsStore  # noqa: PLC0415 - as above

    return RightsStore(namespace)
