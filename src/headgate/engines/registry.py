"""The registry: which engine a URL selects. Each engine describes itself, and is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from ..errors import ConfigError

if TYPE_CHECKING:
    import logging

    from ..clock import Clock
    from .base import AsyncEngine, Engine, EngineDescription

_MODULES: dict[str, str] = {"memory": "headgate.engines.memory_kind"}
_MODULES |= dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), "headgate.engines.redis.kind")
_MODULES |= dict.fromkeys(("headgate", "headgates"), "headgate.engines.remote.kind")
_MODULES["etcd"] = "headgate.engines.etcd.kind"
"""By the first word of a scheme: the module that has the engine's `KIND`."""


class NodeDoor(NamedTuple):
    """The address at which other nodes call a node of the service: its Redis protocol port."""

    address: str
    tls: bool
    needs_token: bool


class EngineKind(Protocol):
    """One engine, before it is opened."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """What its URLs begin with."""

    @property
    def shared(self) -> bool:
        """Whether processes that use the same store share their counts."""

    @property
    def one_per_service(self) -> bool:
        """Whether a service can have only one worker, because each process that opens it is a separate node."""

    @property
    def board(self) -> str:
        """The module of the matching board, with `open_store` and `open_store_beside`; empty if there is none."""

    def for_node(self, url: str, door: NodeDoor) -> str:
        """The engine's URL for a node of the service that other nodes reach at this address."""

    def adopts(self, value: object) -> bool:
        """Whether it can be created from this object, such as a client of its store."""

    def describe(self, url: str) -> EngineDescription:
        """The description of this URL's engine, without opening it."""

    def open(self, source: str | Any, clock: Clock | None, logger: logging.Logger | None) -> Engine:
        """The engine that a URL names, or that it makes of an object."""

    def open_async(
        self, source: str | Any, clock: Clock | None, logger: logging.Logger | None
    ) -> AsyncEngine:
        """The same, awaited."""


def register(scheme: str, module: str) -> None:
    """Have URLs that begin with `scheme` opened by the `KIND` of a module, which is imported when one is."""
    _MODULES[scheme] = module


def kind_of(url: str) -> EngineKind:
    """The engine that a URL names; a `ConfigError` if there is none of that name."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # Its message may quote a password.
        raise ConfigError(
            "the engine's URL is invalid; check the brackets of its address"
        ) from None
    module = _MODULES.get(scheme.partition("+")[0])
    if module is None:
        wrong = f"there is no engine {scheme!r}" if scheme else "an engine is given by a URL"
        raise ConfigError(
            f"{wrong}; the engines are memory://, etcd://, redis:// (and valkey://, redis+unix://, redis+sentinel://, "
            "redis+cluster://, rediss:// with TLS) and headgate:// (headgates:// with TLS)"
        )
    return _kind(module)


def kind_for(source: object) -> EngineKind | None:
    """The engine that can be made of a URL or an object; `None` if the object is none of these."""
    if isinstance(source, str):
        return kind_of(source)
    kinds = (_kind(module) for module in dict.fromkeys(_MODULES.values()))
    return next((kind for kind in kinds if kind.adopts(source)), None)


def _kind(module: str) -> EngineKind:
    kind: EngineKind = importlib.import_module(module).KIND
    return kind
