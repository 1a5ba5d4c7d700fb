"""Adaptive: three algorithms count the same key, and one of them decides.

The sliding window suits steady traffic, the token bucket bursts, backoff abuse. Which one decides is an argument
(`chosen`), selected elsewhere. This module makes switching safe: **a switch never resets a count**, because all three
states are kept current. Whatever the deciding algorithm admits is charged to the other two as well, by force.

    take ──▶ chosen.take ── denied ──▶ nothing changes for the others
                  └─ allowed ──▶ the others are charged too

The state has the parts of the three candidates' states side by side, in the order of `CANDIDATES`, rather than a tuple
of three states: with many keys, each object is another cache miss. `split` and `_joined` convert between both forms.
Each of the three has its own time, which never runs backwards.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from .base import MAX_LEAD_US, Answer, Candidate, Limit, State, Whole, refuse
from .exponential_backoff import ExponentialBackoff
from .sliding_window import SlidingWindow
from .token_bucket import TokenBucket

CANDIDATES: Final = (SlidingWindow.name, TokenBucket.name, ExponentialBackoff.name)
Trio: TypeAlias = tuple[State, State, State]
Three: TypeAlias = tuple[Any, Any, Any]
"""What a window and a backoff are made of."""
Flat: TypeAlias = tuple[Any, Any, Any, State, Any, Any, Any]
UNUSED: Final[Flat] = (None, 0, 0, None, None, 0, None)
"""The start of a window or a backoff, and a bucket, are `None` until they are first used."""


class Adaptive(Limit):
    """`limit` units a window, tested by the candidate that is `chosen` now."""

    __slots__ = ("_index", "_test", "burst", "candidates", "chosen")
    __match_args__ = ("limit", "window_us", "burst", "chosen")
    name: ClassVar[str] = "adaptive"
    guarantee: ClassVar[str] = (
        "at most twice the limit plus the burst in any span of a window's length, whatever the sequence of choices; "
        "each algorithm keeps its own guarantee while it decides, and a switch never resets a count"
    )
    counts_denials: ClassVar[bool] = True
    watched: ClassVar[bool] = True

    def __init__(
        self, limit: Whole, window_us: Whole, burst: Whole = 0, chosen: str = SlidingWindow.name
    ) -> None:
        if chosen not in CANDIDATES:
            refuse(f"adaptive chooses between {', '.join(CANDIDATES)}, not {chosen!r}")
        bucket = TokenBucket(limit, window_us, burst)
        window = SlidingWindow(limit, window_us)
        backoff = ExponentialBackoff(limit, window_us)
        self.candidates = (window, bucket, backoff)
        self.limit, self.window_us, self.burst = bucket.limit, bucket.window_us, bucket.burst
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        self.identity = f"{self.name}:{window_us}"
        self.chosen = chosen
        self._index = CANDIDATES.index(chosen)
        self._test: Candidate = self.candidates[self._index]
        super().__init__(self.limit, self.window_us, self.burst, chosen)

    def counts_like(self, other: Limit) -> bool:
        """Whatever is chosen."""
        return isinstance(other, Adaptive) and self.made_of[:3] == other.made_of[:3]

    def _decider(self) -> str:
        return self.chosen

    def take(self, state: Flat | None, now_us: int, cost: int) -> tuple[Flat | None, Answer]:
        """Let the chosen algorithm decide; charge the others with what it admits."""
        known = UNUSED if state is None else state
        start, previous, current, bucket, began, count, pressure = known
        index = self._index
        before = bucket
        if index == 0:
            before = None if start is None else (start, previous, current)
        elif index == 2:
            before = None if began is None else (began, count, pressure)
        after, answer = self._test.take(before, now_us, cost)
        if after is before:
            return state, answer
        if answer[0] and cost:
            known = self._charged(known, now_us, cost)
        return _with(known, index, after), answer

    def _charged(self, state: Flat, now_us: int, cost: int) -> Flat:
        """The state with the other two charged."""
        start, previous, current, bucket, began, count, pressure = state
        window, tokens, backoff = self.candidates
        if self._index != 0:
            start, previous, current = window.charge((start, previous, current), now_us, cost)
        if self._index != 1:
            bucket = tokens.charge(bucket, now_us, cost)
        if self._index != 2:
            began, count, pressure = backoff.charge((began, count, pressure), now_us, cost)
        return (start, previous, current, bucket, began, count, pressure)

    def peek(self, state: Flat | None, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer."""
        return self._test.peek(split(state)[self._index], now_us, cost)

    def force(self, state: Flat | None, now_us: int, cost: int) -> tuple[Flat | None, Answer]:
        """Charge all three without asking."""
        steps = [
            candidate.force(old, now_us, cost)
            for candidate, old in zip(self.candidates, split(state), strict=True)
        ]
        (window, _), (bucket, _), (backoff, _) = steps
        after = _joined(window, bucket, backoff)
        same = state is None or after == state
        return (state if same and not cost else after), steps[self._index][1]

    def mark(self, state: Flat) -> Trio:
        """The marks of all three."""
        window, bucket, backoff = self.candidates
        first, second, third = split(state)
        return window.mark(first), bucket.mark(second), backoff.mark(third)

    def refund(
        self, state: Flat | None, mark: Trio, now_us: int, cost: int, low: int
    ) -> tuple[Flat | None, int]:
        """Give back in all three; the low-water mark is the bucket's."""
        steps = [
            candidate.refund(old, old_mark, now_us, cost, low)
            for candidate, old, old_mark in zip(self.candidates, split(state), mark, strict=True)
        ]
        (window, _), (bucket, given), (backoff, _) = steps
        after = _joined(window, bucket, backoff)
        return state if state is None or after == state else after, given

    def low(self, state: Flat | None) -> int:
        """The bucket's."""
        return self.candidates[1].low(split(state)[1])

    def watch(self, state: Flat) -> tuple[Flat, int]:
        """Begin one for the bucket."""
        bucket, low = self.candidates[1].watch(split(state)[1])
        return _with(state, 1, bucket), low

    def unwatch(self, state: Flat | None) -> Flat | None:
        """The state without the bucket's."""
        return None if state is None else _with(state, 1, self.candidates[1].unwatch(state[3]))

    def used(self, state: Flat | None, now_us: int) -> int:
        """What the chosen algorithm counts."""
        return self._test.used(split(state)[self._index], now_us)

    def seen(self, state: Flat | None, now_us: int) -> tuple[Flat | None, int]:
        """Cut the parts that are too far ahead of now; the time is the latest of the three."""
        if state is None:
            return None, now_us
        parts = split(state)
        window, bucket, backoff = (
            candidate.seen(part, now_us)
            for candidate, part in zip(self.candidates, parts, strict=True)
        )
        at_us = max(window[1], bucket[1], backoff[1])
        after = (window[0], bucket[0], backoff[0])
        return (state if after == parts else _joined(*after)), at_us

    def latest_us(self, state: Flat) -> int:
        """The latest of the three."""
        return max(
            0 if part is None else candidate.latest_us(part)
            for candidate, part in zip(self.candidates, split(state), strict=True)
        )

    def idle_at_us(self, state: Flat) -> int:
        """When all three are idle."""
        return max(
            0 if part is None else candidate.idle_at_us(part)
            for candidate, part in zip(self.candidates, split(state), strict=True)
        )

    def encode(self, state: Flat) -> tuple[object, ...]:
        """The three states, each encoded by its own algorithm."""
        return tuple(
            None if part is None else candidate.encode(part)
            for candidate, part in zip(self.candidates, split(state), strict=True)
        )

    def decode(self, data: Any) -> Flat:
        """The inverse of `encode`."""
        window, bucket, backoff = (
            None if part is None else candidate.decode(part)
            for candidate, part in zip(self.candidates, data, strict=True)
        )
        return _joined(window, bucket, backoff)


def split(state: Flat | None) -> Trio:
    """The states of the three candidates."""
    if state is None:
        return (None, None, None)
    start, previous, current, bucket, began, count, pressure = state
    window = None if start is None else (start, previous, current)
    backoff = None if began is None else (began, count, pressure)
    return (window, bucket, backoff)


def _joined(window: Three | None, bucket: State, backoff: Three | None) -> Flat:
    """The inverse of `split`."""
    start, previous, current, _, began, count, pressure = UNUSED
    if window is not None:
        start, previous, current = window
    if backoff is not None:
        began, count, pressure = backoff
    return (start, previous, current, bucket, began, count, pressure)


def _with(state: Flat, index: int, part: State) -> Flat:
    """The state with one candidate's part replaced."""
    start, previous, current, bucket, began, count, pressure = state
    if index == 1:
        return (start, previous, current, part, began, count, pressure)
    three: Three = part
    first, second, third = three
    if index == 0:
        return (first, second, third, bucket, began, count, pressure)
    return (start, previous, current, bucket, first, second, third)
