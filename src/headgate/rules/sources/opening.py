"""Opens the store that a URL names; only the client in use has to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from .location import parse_location

if TYPE_CHECKING:
    from pathlib import Path

    from .base import RuleStore

EXTRAS: Final = {"file": "rules", "zookeeper": "zookeeper", "etcd": "etcd"}


def open_store(where: str | Path) -> RuleStore:
    """The store that a URL or path names; opening it does not connect yet."""
    location = parse_location(where)
    try:
        if location.scheme == "zookeeper":
            from .zookeeper import ZooKeeperStore  # noqa: PLC0415 - imported lazily

            return ZooKeeperStore(location)
        if location.scheme == "etcd":
            from .etcd import EtcdStore  # noqa: PLC0415

            return EtcdStore(location)
        from .file import FileStore  # noqa: PLC0415

        return FileStore(location)
    except ModuleNotFoundError as error:
        extra = EXTRAS[location.scheme]
        if (error.name or "").startswith("headgate"):
            raise
        raise ConfigError(
            f"{location.scheme} needs an extra: pip install 'headgate[{extra}]'"
        ) from error
