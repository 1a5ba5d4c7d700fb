"""A line: the callers that wait for a bucket, in order of arrival.

Every caller in line knows when to start. If one leaves, closing the gap would let a new caller start at the same time
as one further back. So a place is given back only once no caller is left behind it, together with every place in front
of it whose caller has also left. Giving it back restores the earlier state, if nothing else was charged since.

A place whose time has come is used up, even if its caller has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import State, TokenBucket


class Spot:
    """One place in line."""

    __slots__ = ("after", "before", "left", "line_ends_us", "starts_us")

    def __init__(self, before: State, after: State, starts_us: int, line_ends_us: int) -> None:
        self.before = before
        self.after = after
        self.starts_us = starts_us
        self.line_ends_us = line_ends_us
        """When all callers up to this one have started: with another burst, one further back may start earlier."""
        self.left = False


class Line:
    """The places in front of one bucket. Not safe under threads: the engine holds its lock."""

    __slots__ = ("_spots", "ends_us")

    def __init__(self) -> None:
        self._spots: dict[int, Spot] = {}
        """By when the bucket will be idle, which is later for each of them."""
        self.ends_us = 0
        """When the last one in line may start."""

    def encode(self, pack: Callable[[State], Any]) -> list[Any]:
        """As plain data; `pack` makes such of a state."""
        spots = [
            [
                name,
                pack(one.before),
                pack(one.after),
                one.starts_us,
                one.line_ends_us,
                one.left,
            ]
            for name, one in self._spots.items()
        ]
        return [self.ends_us, spots]

    @classmethod
    def decode(cls, data: list[Any], unpack: Callable[[Any], State]) -> Line:
        """The inverse."""
        line = cls()
        line.ends_us, spots = data
        for name, before, after, starts_us, line_ends_us, left in spots:
            line._spots[name] = Spot(unpack(before), unpack(after), starts_us, line_ends_us)
            line._spots[name].left = left
        return line

    def join(self, name: int, before: State, after: State, starts_us: int, now_us: int) -> None:
        """A caller has booked the step from `before` to `after`, and will start then."""
        spots = self._spots
        while spots and (first := next(iter(spots))) and spots[first].starts_us <= now_us:
            del spots[first]
        self.ends_us = max(self.ends_us, starts_us)
        spots[name] = Spot(before, after, starts_us, self.ends_us)

    def leave(self, name: int, limit: TokenBucket, state: State, now_us: int) -> State:
        """A waiting caller has left; returns the state without every place that has no caller behind it."""
        spots = self._spots
        if name not in spots:
            return state
        spots[name].left = True
        while spots:
            last = next(reversed(spots))
            spot = spots[last]
            if not spot.left or spot.starts_us <= now_us:
                break
            put_back = limit.leave_line(state, spot.after, spot.before, now_us)
            if put_back is None:
                break
            state = put_back
            del spots[last]
        self.ends_us = spots[next(reversed(spots))].line_ends_us if spots else 0
        return state
