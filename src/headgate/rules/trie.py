"""Every path pattern at once: a trie whose branches are segments.

A request walks it one segment at a time. It stands on several nodes together where stars and names leave a choice, and
never on one node twice, so a walk takes at most segments times nodes, whatever the patterns are: there is nothing to
go back over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from .patterns import ONE, Piece, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

LEAF: Final[dict[str, Any]] = {}
"""What all nodes share that nothing goes on from: most of them, and thousands."""


class Node(Generic[T]):
    """A place in the trie: what is found there, and where it goes on."""

    __slots__ = ("below", "fixed", "gap", "here", "is_gap", "one")

    def __init__(self, *, is_gap: bool = False) -> None:
        self.fixed: dict[str, Node[T]] = LEAF
        """By the next segment."""
        self.one: Node[T] | None = None
        """Whatever the next segment is."""
        self.gap: Node[T] | None = None
        """After any number of segments; whoever stands here stands there too."""
        self.is_gap = is_gap
        """Whoever stands here stays, whatever the next segment is."""
        self.here: tuple[T, ...] = ()
        """For whoever ends here."""
        self.below: tuple[T, ...] = ()
        """For whoever goes on from here."""

    def next(self, piece: Piece) -> Node[T]:
        """The node that one piece of a pattern leads to; a new one if nobody went there before."""
        kind, text = piece
        if kind == "fixed":
            found = self.fixed.get(text)
            if found is None:
                if self.fixed is LEAF:
                    self.fixed = {}
                found = self.fixed[text] = Node()
            return found
        if kind == "one":
            self.one = self.one or Node()
            return self.one
        self.gap = self.gap or Node(is_gap=True)
        return self.gap


class Trie(Generic[T]):
    """Finds a value for each pattern that a path fits. `make` makes the value of a new pattern."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._root: Node[T] = Node()
        self._values: dict[tuple[Piece, ...], T] = {}
        self._has_gaps = False

    def at(self, pattern: str) -> T:
        """The value of a pattern, a new one if nobody asked before; what a segment is called makes no difference."""
        pieces = pieces_of(pattern)
        if "{" in pattern:
            pieces = tuple([ONE if piece.kind == "one" else piece for piece in pieces])
        value = self._values.get(pieces)
        if value is None:
            value = self._values[pieces] = self._make()
            self._place(pieces, value)
        return value

    def _place(self, pieces: tuple[Piece, ...], value: T) -> None:
        end = pieces[-1].kind if pieces else "one"
        node = self._root
        for piece in pieces[:-1] if end in {"some", "any"} else pieces:
            node = node.next(piece)
            if node.is_gap:
                self._has_gaps = True
        if end != "some":
            node.here += (value,)
        if end in {"some", "any"}:
            node.below += (value,)

    def values(self) -> Iterable[T]:
        """The values of all patterns."""
        return self._values.values()

    def nodes(self) -> Iterator[Node[T]]:
        """All places, in any order."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting += node.fixed.values()
            waiting += [after for after in (node.one, node.gap) if after is not None]
            yield node

    def find(self, segments: Sequence[str]) -> Iterable[T]:
        """The values of all patterns that the path fits, each once."""
        found: list[T] = []
        places: Iterable[Node[T]] = [self._root] if not self._has_gaps else _with_gaps([self._root])
        for segment in segments:
            ahead: list[Node[T]] = []
            for node in places:
                if node.below:
                    found += node.below
                if node.is_gap:
                    ahead.append(node)
                after = node.fixed.get(segment)
                if after is not None:
                    ahead.append(after)
                if node.one is not None:
                    ahead.append(node.one)
            if not ahead:
                return found
            places = _with_gaps(ahead) if self._has_gaps else ahead
        for node in places:
            found += node.here
        # Through a gap one can come below a node more than once.
        return dict.fromkeys(found) if self._has_gaps else found


def _with_gaps(nodes: list[Node[T]]) -> dict[Node[T], None]:
    """These nodes, and the gaps that begin at them, each once."""
    places = dict.fromkeys(nodes)
    for node in nodes:
        if node.gap is not None:
            places[node.gap] = None
    return places
