"""Adaptive: three algorithms watch the same key, and one of them decides.

Steady traffic suits the sliding window, bursts the token bucket, abuse the backoff. Which one decides
is an argument (`chosen`), for others to work out. What lives here is the part that
makes switching safe: **no switch ever hands out a fresh allowance**, because the state of all three
is kept current. Whatever the deciding test admits is charged to the other two as well, by force.

    take ──▶ chosen.take ── denied ──▶ nothing changes for the others
                  └─ allowed ──▶ the others are charged too

The state is a tuple of the three candidates' states, in the order of `CANDIDATES`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from .base import Answer, Candidate, Limit, State, Whole, refuse
from .exponential_backoff import ExponentialBackoff
from .sliding_window import SlidingWindow
from .token_bucket import TokenBucket

CANDIDATES: Final = (SlidingWindow.name, TokenBucket.name, ExponentialBackoff.name)
Trio: TypeAlias = tuple[State, State, State]
UNUSED: Final[Trio] = (None, None, None)


class Adaptive(Limit):
    """`limit` units a window, tested by the candidate that is `chosen` now."""

    __slots__ = ("_index", "burst", "candidates", "chosen")
    __match_args__ = ("limit", "window_us", "burst", "chosen")
    name: ClassVar[str] = "adaptive"
    counts_denials: ClassVar[bool] = True

    def __init__(
        self, limit: Whole, window_us: Whole, burst: Whole = 0, chosen: str = SlidingWindow.name
    ) -> None:
        if chosen not in CANDIDATES:
            refuse(f"adaptive chooses between {', '.join(CANDIDATES)}, not {chosen!r}")
        bucket = TokenBucket(limit, window_us, burst)
        window = SlidingWindow(limit, window_us)
        backoff = ExponentialBackoff(limit, window_us)
        self.candidates: tuple[Candidate, Candidate, Candidate] = (window, bucket, backoff)
        self.limit, self.window_us, self.burst = bucket.limit, bucket.window_us, bucket.burst
        self.identity = f"{self.name}:{window_us}"
        self.chosen = chosen
        self._index = CANDIDATES.index(chosen)
        super().__init__(self.limit, self.window_us, self.burst, chosen)

    def take(self, state: Trio | None, now_us: int, cost: int) -> tuple[Trio | None, Answer]:
        """Let the chosen test decide; charge the others with what it admits."""
        states = state or UNUSED
        index = self._index
        before = states[index]
        after, answer = self.candidates[index].take(before, now_us, cost)
        if after is before:
            return state, answer
        if not answer[0]:
            return (*states[:index], after, *states[index + 1 :]), answer
        first, second, third = states
        window, bucket, backoff = self.candidates
        return (
            after if index == 0 else window.charge(first, now_us, cost),
            after if index == 1 else bucket.charge(second, now_us, cost),
            after if index == 2 else backoff.charge(third, now_us, cost),
        ), answer

    def peek(self, state: Trio | None, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer."""
        index = self._index
        return self.candidates[index].peek((state or (None, None, None))[index], now_us, cost)

    def force(self, state: Trio | None, now_us: int, cost: int) -> tuple[Trio | None, Answer]:
        """Charge all three without asking."""
        states = state or (None, None, None)
        steps = [
            candidate.force(old, now_us, cost)
            for candidate, old in zip(self.candidates, states, strict=True)
        ]
        (window, _), (bucket, _), (backoff, _) = steps
        after = (window, bucket, backoff) if cost else state
        return after, steps[self._index][1]

    def mark(self, state: Trio) -> Trio:
        """The marks of all three."""
        window, bucket, backoff = self.candidates
        return window.mark(state[0]), bucket.mark(state[1]), backoff.mark(state[2])

    def refund(
        self, state: Trio | None, mark: Trio, now_us: int, cost: int, refunded: int
    ) -> tuple[Trio | None, int]:
        """Give back in all three; only the bucket needs to know of earlier refunds."""
        states = state or (None, None, None)
        steps = [
            candidate.refund(old, old_mark, now_us, cost, refunded)
            for candidate, old, old_mark in zip(self.candidates, states, mark, strict=True)
        ]
        (window, _), (bucket, given), (backoff, _) = steps
        after = (window, bucket, backoff)
        return state if after == states else after, given

    def used(self, state: Trio | None, now_us: int) -> int:
        """What the chosen test counts."""
        index = self._index
        return self.candidates[index].used((state or (None, None, None))[index], now_us)

    def idle_at_us(self, state: Trio) -> int:
        """When all three are idle."""
        return max(
            0 if part is None else candidate.idle_at_us(part)
            for candidate, part in zip(self.candidates, state, strict=True)
        )

    def encode(self, state: Trio) -> tuple[object, ...]:
        """The three states, each encoded by its own algorithm."""
        return tuple(
            None if part is None else candidate.encode(part)
            for candidate, part in zip(self.candidates, state, strict=True)
        )

    def decode(self, data: Any) -> Trio:
        """The inverse of `encode`."""
        window, bucket, backoff = (
            None if part is None else candidate.decode(part)
            for candidate, part in zip(self.candidates, data, strict=True)
        )
        return window, bucket, backoff
