"""Shares: what each node may admit of a limit while the store does not answer.

Every node gets `limit // nodes`, so together they admit no more than the limit. If there are more nodes than units, as
many nodes as units get one each: a rendezvous hash of key and node picks them, so nodes with the same membership pick
the same ones without communication.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ..algorithms import Adaptive, FixedWindow, TokenBucket
from ..algorithms.base import MAX_WINDOW_US
from .never import capacity

if TYPE_CHECKING:
    from ..algorithms import Limit


class Fleet(NamedTuple):
    """The nodes that share a limit."""

    nodes: int = 1
    """The number of nodes."""
    members: tuple[str, ...] = ()
    """The names that are known."""
    me: str = ""
    """This node's name."""
    known: bool = True
    """Whether the number of nodes is known."""

    def owns(self, key: str, units: int) -> bool:
        """Whether this node is among the `units` nodes that get a unit of this key.

        A node without a name, or with one that others may not know, gets none: too few is better than too many.
        """
        if self.me not in self.members:
            return False
        unnamed = (f"#{number}" for number in range(self.nodes - len(self.members)))
        ranked = sorted((*self.members, *unnamed), key=lambda node: _weight(key, node))
        return self.me in ranked[:units]


def share_of(limit: Limit, fleet: Fleet, key: str) -> Limit:
    """This node's share of a limit; a limit of 0 if it gets nothing."""
    units = capacity(limit)
    if units >= fleet.nodes:
        return divided(limit, fleet.nodes)
    return divided(limit, units) if units and fleet.owns(key, units) else _nothing_of(limit)


def divided(limit: Limit, parts: int) -> Limit:
    """One of `parts` equal parts of a limit, rounded down."""
    if parts == 1:
        return limit
    number = limit.limit // parts
    if isinstance(limit, TokenBucket):
        burst = limit.burst // parts
        if limit.window_us * parts <= MAX_WINDOW_US:  # Exactly the same rate.
            share = TokenBucket(limit.limit, limit.window_us * parts, burst)
            # Its state is the time until it is full, so it means the same whatever the number of parts.
            object.__setattr__(share, "identity", limit.identity)
            return share
        return TokenBucket(number, limit.window_us, burst if number else 0)
    if isinstance(limit, Adaptive):
        burst = max(1, limit.burst // parts) if number else 0
        return Adaptive(number, limit.window_us, burst, limit.chosen)
    return _with_number(limit, number)


def _nothing_of(limit: Limit) -> Limit:
    if isinstance(limit, TokenBucket | Adaptive):
        return FixedWindow(0, limit.window_us)
    return _with_number(limit, 0)


def _with_number(limit: Limit, number: int) -> Limit:
    """The same limit with another number of units, which is always its first argument."""
    kind: type[Any] = type(limit)
    made: Limit = kind(number, *limit.made_of[1:])
    return made


def _weight(key: str, node: str) -> bytes:
    secret = blake2b(key.encode(), digest_size=32).digest()
    return blake2b(node.encode(), key=secret, digest_size=8).digest()
