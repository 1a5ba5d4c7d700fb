"""The store of a region, in a Redis or an etcd of its own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.servers.etcd import etcd
from tests.servers.fixtures import installed
from tests.servers.redis import standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERYTHING = {"key": "AA==", "range_end": "AA=="}


@dataclass
class StorePlace:
    """A server that a region keeps everything in."""

    url: str
    empty: Callable[[], object]
    """Lose everything."""
    call: Callable[..., Any]
    """Ask the server itself: by a command of Redis, or a path of etcd's gateway."""


@contextlib.contextmanager
def store_place(kind: str) -> Iterator[StorePlace]:
    """A new one: `redis` or `etcd`."""
    if kind == "redis":
        with installed(), standalone("redis-7.0") as server:
            yield StorePlace(server.url, lambda: server.call("FLUSHALL"), server.call)
        return
    with installed(), etcd(1) as servers:
        (node,) = servers.nodes
        yield StorePlace(
            f"etcd://{servers.hosts}",
            lambda: node.call("/v3/kv/deleterange", EVERYTHING),
            node.call,
        )
