"""Every path pattern at once: a trie whose branches are segments.

A request walks it one segment at a time. It stands on several nodes together where stars and names leave a choice, and
never on one node twice, so a walk takes at most segments times nodes, whatever the patterns are: there is nothing to
go back over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from .path_patterns import Piece, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from .path_patterns import Kind

T = TypeVar("T")

LEAF: Final[dict[str, Any]] = {}
"""What all nodes share that nothing goes on from: most of them, and thousands."""


class TrieNode(Generic[T]):
    """A place in the trie: what is found there, and where it goes on."""

    __slots__ = ("below", "fixed", "gap", "here", "is_gap", "one")

    def __init__(self, *, is_gap: bool = False) -> None:
        self.fixed: dict[str, TrieNode[T]] = LEAF
        """By the next segment."""
        self.one: TrieNode[T] | None = None
        """Whatever the next segment is."""
        self.gap: TrieNode[T] | None = None
        """After any number of segments; a walk at this node is also at that one."""
        self.is_gap = is_gap
        """A walk at this node stays here, whatever the next segment is."""
        self.here: tuple[T, ...] = ()
        """For paths that end here."""
        self.below: tuple[T, ...] = ()
        """For paths that continue from here."""

    def next(self, piece: Piece) -> TrieNode[T]:
        """The node that one piece of a pattern leads to; created if it does not exist."""
        kind, text = piece
        if kind == "fixed":
            found = self.fixed.get(text)
            if found is None:
                if self.fixed is LEAF:
                    self.fixed = {}
                found = self.fixed[text] = TrieNode()
            return found
        if kind == "one":
            self.one = self.one or TrieNode()
            return self.one
        self.gap = self.gap or TrieNode(is_gap=True)
        return self.gap


class PathTrie(Generic[T]):
    """Finds a value for each pattern that a path fits. `make` makes the value of a new pattern."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._root: TrieNode[T] = TrieNode()
        self._values: dict[tuple[TrieNode[T], Kind], T] = {}
        """By the node that a pattern ends at, and how it ends there."""
        self._gaps = 0
        """How many there are in a pattern, at most; one that ends it is none."""

    def at(self, pattern: str) -> T:
        """The value of a pattern, a new one if nobody asked before; what a segment is called makes no difference."""
        pieces = pieces_of(pattern)
        end: Kind = pieces[-1].kind if pieces else "one"
        is_open = end in {"some", "any"}
        node = self._root
        gaps = 0
        for piece in pieces[:-1] if is_open else pieces:
            node = node.next(piece)
            gaps += node.is_gap
        if gaps > self._gaps:
            self._gaps = gaps
        if not is_open:
            end = "one"
        value = self._values.get((node, end))
        if value is None:
            value = self._values[node, end] = self._make()
            if end != "some":
                node.here += (value,)
            if is_open:
                node.below += (value,)
        return value

    def values(self) -> Iterable[T]:
        """The values of all patterns."""
        return self._values.values()

    def nodes(self) -> Iterator[TrieNode[T]]:
        """All places, each before those below it."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting += node.fixed.values()
            waiting += [after for after in (node.one, node.gap) if after is not None]
            yield node

    def find(self, segments: Sequence[str]) -> Collection[T]:
        """The values of all patterns that the path fits, each once."""
        return self._through_gaps(segments) if self._gaps else self._straight(segments)

    def _straight(self, segments: Sequence[str]) -> list[T]:
        """Without gaps every node has its one place in a path, and no two ways lead there: follow each to its end."""
        found: list[T] = []
        end = len(segments)
        waiting = [(self._root, 0)]
        while waiting:
            node, at = waiting.pop()
            while at < end:
                found += node.below
                after = node.fixed.get(segments[at])
                at += 1
                if node.one is not None:
                    if after is not None:
                        waiting.append((after, at))
                    after = node.one
                if after is None:
                    break
                node = after
            else:
                found += node.here
        return found

    def _through_gaps(self, segments: Sequence[str]) -> Collection[T]:
        """Segment by segment, on all nodes at once that the path so far may lead to."""
        found: list[T] = []
        root = self._root
        places: Collection[TrieNode[T]] = [root] if root.gap is None else [root, root.gap]
        for segment in segments:
            ahead: list[TrieNode[T]] = []
            for node in places:
                if node.below:
                    found += node.below
                if node.is_gap:
                    ahead.append(node)
                for after in (node.fixed.get(segment), node.one):
                    if after is not None:
                        ahead.append(after)
                        if after.gap is not None:
                            ahead.append(after.gap)
            if not ahead:
                break
            # To a gap behind a gap there may be several ways.
            places = dict.fromkeys(ahead) if self._gaps > 1 else ahead
        else:
            for node in places:
                found += node.here
        # One can come below a node more than once.
        return found if len(found) < 2 else dict.fromkeys(found)
