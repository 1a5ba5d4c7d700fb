"""Which token holds which slots: an immutable map whose next version shares most of the previous one.

It is a tree over the tokens' hashes. Each node has the totals of its part: the number of slots, and when the first and
the last of them expire. So no acquisition, renewal or release visits all holders; it replaces only the nodes on the
path to one token, and those in which something has expired.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

from .base import MAX_EXACT

if TYPE_CHECKING:
    from collections.abc import Iterator

Held: TypeAlias = tuple[int, int, int]
"""`(since_us, ttl_us, cost)`."""

FEW: Final = 16
"""The most holders of a leaf; a fuller one becomes a branch with as many children."""
BITS: Final = 4
HASH_BITS: Final = 60


class HolderNode:
    """A leaf, which has holders, or a branch, which has children; never changed, and never empty."""

    __slots__ = ("children", "count", "first_us", "held", "last_us", "used")

    def __init__(
        self, held: dict[str, Held] | None, children: list[HolderNode | None] | None
    ) -> None:
        self.held = held
        self.children = children
        count, used, first_us, last_us = 0, 0, MAX_EXACT, -MAX_EXACT
        if held is not None:
            for since_us, ttl_us, cost in held.values():
                ends_us = since_us + ttl_us
                used += cost
                last_us = max(last_us, ends_us)
                first_us = min(first_us, ends_us)
            count = len(held)
        elif children is not None:
            for child in children:
                if child is not None:
                    count += child.count
                    used += child.used
                    last_us = max(last_us, child.last_us)
                    first_us = min(first_us, child.first_us)
        self.count: int = count
        self.used: int = used
        self.first_us: int = first_us
        self.last_us: int = last_us


class Holders:
    """Tokens and what they hold, and the latest acquisition or renewal: the key's time, even after a release."""

    __slots__ = ("_root", "last", "newest")

    def __init__(self, root: HolderNode | None, newest: tuple[int, int], last: str = "") -> None:
        self._root = root
        self.newest = newest
        """`(since_us, ttl_us)`; of two at one moment, the one that lasts longer."""
        self.last = last
        """The token that held last."""

    def __len__(self) -> int:
        return 0 if self._root is None else self._root.count

    @property
    def used(self) -> int:
        """The slots that are held, including expired ones that were not removed yet."""
        return 0 if self._root is None else self._root.used

    @property
    def ends_us(self) -> int:
        """When the last of them expires; 0 if there is none."""
        return 0 if self._root is None else self._root.last_us

    def get(self, token: str) -> Held | None:
        """What a token holds."""
        node, bits = self._root, _bits_of(token)
        while node is not None:
            if node.held is not None:
                return node.held.get(token)
            assert node.children is not None
            node = node.children[bits % FEW]
            bits >>= BITS
        return None

    def holding(self, token: str, held: Held) -> Holders:
        """The same, with `token` holding this."""
        newest = max(self.newest, (held[0], held[1]))
        return Holders(_put(self._root, token, held, _bits_of(token), HASH_BITS), newest, token)

    def without(self, token: str) -> Holders:
        """The same, with `token` holding nothing."""
        return Holders(_dropped(self._root, token, _bits_of(token)), self.newest)

    def lowered(self, token: str, held: Held) -> Holders:
        """The same, with `token` holding this instead of more."""
        return Holders(_put(self._root, token, held, _bits_of(token), HASH_BITS), self.newest)

    def as_of(self, newest: tuple[int, int], last: str) -> Holders:
        """The same holders, with another latest time."""
        return Holders(self._root, newest, last)

    def current(self, at_us: int) -> Holders:
        """The same without expired holders."""
        root = self._root
        if root is None or root.first_us > at_us:
            return self
        return Holders(_unexpired(root, at_us), self.newest)

    def cut(self, now_us: int) -> Holders:
        """The same with every time that is ahead of now cut to now, and without holders that have then expired."""
        holders = Holders(None, (now_us, self.newest[1]))
        for token, (since_us, ttl_us, cost) in self.current(now_us).items():
            holders = holders.holding(token, (min(since_us, now_us), ttl_us, cost))
        return holders

    def items(self) -> Iterator[tuple[str, Held]]:
        """Tokens and what they hold, in no particular order."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if node is not None and node.held is not None:
                yield from node.held.items()
            elif node is not None and node.children is not None:
                nodes.extend(node.children)

    def endings(self) -> Iterator[tuple[int, int]]:
        """When slots expire, and how many, soonest first."""
        if self._root is None:
            return
        number = 0  # A tie-breaker for equal times, because nodes cannot be compared.
        soonest: list[tuple[int, int, HolderNode | None, int]] = [
            (self._root.first_us, 0, self._root, 0)
        ]
        while soonest:
            ends_us, _, node, cost = heappop(soonest)
            if node is None:
                yield ends_us, cost
            elif node.held is not None:
                for since_us, ttl_us, held in node.held.values():
                    number += 1
                    heappush(soonest, (since_us + ttl_us, number, None, held))
            elif node.children is not None:
                for child in node.children:
                    if child is not None:
                        number += 1
                        heappush(soonest, (child.first_us, number, child, 0))


def _bits_of(token: str) -> int:
    return hash(token) & ((1 << HASH_BITS) - 1)


def _put(node: HolderNode | None, token: str, held: Held, bits: int, left: int) -> HolderNode:
    """The node with `token` added; `bits` are the unused bits of its hash, and `left` is how many there are."""
    if node is None:
        return HolderNode({token: held}, None)
    if node.children is not None:
        children = node.children.copy()
        children[bits % FEW] = _put(children[bits % FEW], token, held, bits >> BITS, left - BITS)
        return HolderNode(None, children)
    assert node.held is not None
    together = node.held.copy()
    together[token] = held
    if len(together) <= FEW or not left:
        return HolderNode(together, None)
    parts: list[dict[str, Held]] = [{} for _ in range(FEW)]
    for name, its in together.items():
        parts[(_bits_of(name) >> (HASH_BITS - left)) % FEW][name] = its
    return HolderNode(None, [HolderNode(part, None) if part else None for part in parts])


def _dropped(node: HolderNode | None, token: str, bits: int) -> HolderNode | None:
    """Without `token`."""
    if node is None:
        return None
    if node.children is None:
        assert node.held is not None
        if token not in node.held:
            return node
        rest = node.held.copy()
        del rest[token]
        return HolderNode(rest, None) if rest else None
    child = node.children[bits % FEW]
    after = _dropped(child, token, bits >> BITS)
    if after is child:
        return node
    children = node.children.copy()
    children[bits % FEW] = after
    return _branch(children)


def _unexpired(node: HolderNode, at_us: int) -> HolderNode | None:
    """The node without holders that have expired by then."""
    if node.first_us > at_us:
        return node
    if node.last_us <= at_us:
        return None
    if node.held is not None:
        return HolderNode(
            {one: its for one, its in node.held.items() if its[0] + its[1] > at_us}, None
        )
    assert node.children is not None
    return _branch([None if child is None else _unexpired(child, at_us) for child in node.children])


def _branch(children: list[HolderNode | None]) -> HolderNode | None:
    """The node with these children: `None` if there are none, a leaf if few holders are left."""
    node = HolderNode(None, children)
    if not node.count:
        return None
    if node.count > FEW // 2:
        return node
    together: dict[str, Held] = {}
    for child in children:
        if child is not None:
            together.update(Holders(child, (0, 0)).items())
    return HolderNode(together, None)
