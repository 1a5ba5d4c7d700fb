"""Concurrency: at most so many at the same time, and a crash gives its slot back.

    limit 2   ├─ a ──────────┤              a slot ends when its holder lets go,
                 ├─ b ──────────┊ expired   or when it was not renewed for `ttl_us`
                      c? no     ├─ c ──▶

A slot is held under a token, so letting go twice frees one slot and a stranger's token frees none. The
state maps each token to `(since_us, ttl_us, cost)`; it is treated as a value and copied, never changed.
`take`, which knows no token, holds a slot under a name of its own until it expires or is refunded.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from .base import MAX_EXACT, MAX_MEMBERS, NEVER, Answer, Limit, Whole, require_whole

Holders: TypeAlias = dict[str, tuple[int, int, int]]

MIN_TTL_US: Final = 1_000
MAX_TTL_US: Final = 86_400_000_000


class Concurrency(Limit):
    """`limit` slots; one that is not renewed within `ttl_us` is free again."""

    __slots__ = ("ttl_us",)
    __match_args__ = ("limit", "ttl_us")
    name: ClassVar[str] = "concurrency"

    def __init__(self, limit: Whole, ttl_us: Whole = 30_000_000) -> None:
        self.limit = require_whole("limit of concurrency", limit, 0, MAX_MEMBERS)
        self.window_us = 0
        self.identity = self.name
        self.ttl_us = require_whole("ttl in microseconds", ttl_us, MIN_TTL_US, MAX_TTL_US)
        super().__init__(self.limit, self.ttl_us)

    def hold(
        self, state: Holders | None, now_us: int, cost: int, token: str
    ) -> tuple[Holders | None, Answer]:
        """Hold `cost` slots under `token` if they are free; a token that holds already is renewed."""
        holders = self._current(state, now_us)
        used = _used(holders) - (holders[token][2] if token in holders else 0)
        if used + cost > self.limit:
            denied = self._denied(holders, now_us, cost, token)
            return (holders if _pulled(holders, state) else state), denied
        if not cost:
            return state, self._answer(holders, now_us)
        holders.pop(token, None)  # It comes last, as `mark` expects.
        holders[token] = (now_us, self.ttl_us, cost)
        return holders, self._answer(holders, now_us)

    def release(self, state: Holders | None, now_us: int, token: str) -> Holders | None:
        """Let go of what `token` holds; the same state if it holds nothing."""
        if state is None or token not in state:
            return state
        holders = self._current(state, now_us)
        holders.pop(token, None)
        return holders

    def renew(self, state: Holders | None, now_us: int, token: str) -> tuple[Holders | None, bool]:
        """Hold on for another `ttl_us`; false when the slot has expired and may be another's."""
        holders = self._current(state, now_us)
        if token not in holders:
            return state, False
        holders[token] = (now_us, self.ttl_us, holders[token][2])
        return holders, True

    def take(self, state: Holders | None, now_us: int, cost: int) -> tuple[Holders | None, Answer]:
        """Hold under a name of its own until it expires or is refunded."""
        return self.hold(state, now_us, cost, _fresh_token(state, now_us))

    def peek(self, state: Holders | None, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer."""
        holders = self._current(state, now_us)
        if _used(holders) + cost > self.limit:
            return self._denied(holders, now_us, cost)
        return self._answer(holders, now_us)

    def force(self, state: Holders | None, now_us: int, cost: int) -> tuple[Holders | None, Answer]:
        """Hold without asking."""
        holders = self._current(state, now_us)
        if not cost:
            return state, self._answer(holders, now_us)
        holders[_fresh_token(state, now_us)] = (now_us, self.ttl_us, min(cost, MAX_MEMBERS))
        return holders, self._answer(holders, now_us)

    def mark(self, state: Holders) -> str:
        """The token that came last."""
        return next(reversed(state))

    def refund(
        self, state: Holders | None, mark: str, now_us: int, cost: int, refunded: int
    ) -> tuple[Holders | None, int]:
        """Give back slots that `mark` holds, if it holds any still."""
        holders = self._current(state, now_us)
        if mark not in holders:
            return state, 0
        since_us, ttl_us, held = holders.pop(mark)
        given = min(cost, held)
        if held > given:
            holders[mark] = (since_us, ttl_us, held - given)
        return holders, given

    def used(self, state: Holders | None, now_us: int) -> int:
        """Slots that are held now."""
        return _used(self._current(state, now_us))

    def idle_at_us(self, state: Holders) -> int:
        """When the last holder expires."""
        return max((since_us + ttl_us for since_us, ttl_us, _ in state.values()), default=0)

    def encode(self, state: Holders) -> tuple[tuple[str, int, int, int], ...]:
        """`(token, since_us, ttl_us, cost)` of each holder."""
        return tuple((token, *held) for token, held in state.items())

    def decode(self, data: Any) -> Holders:
        """The inverse of `encode`."""
        holders: Holders = {}
        for token, since_us, ttl_us, cost in data:
            if type(token) is not str:
                raise TypeError(f"a token is text, not {token!r}")
            require_whole("since_us", since_us, 0, MAX_EXACT)
            require_whole("ttl_us", ttl_us, MIN_TTL_US, MAX_TTL_US)
            require_whole("cost", cost, 1, MAX_MEMBERS)
            holders[token] = (since_us, ttl_us, cost)
        return holders

    def _current(self, state: Holders | None, now_us: int) -> Holders:
        """A copy of the state without the expired, and with nothing ahead of now."""
        return {
            token: (min(since_us, now_us), ttl_us, cost)
            for token, (since_us, ttl_us, cost) in (state or {}).items()
            if since_us + ttl_us > now_us
        }

    def _answer(self, holders: Holders, now_us: int) -> Answer:
        remaining = max(0, self.limit - _used(holders))
        return (True, remaining, 0, max(0, self.idle_at_us(holders) - now_us), 0)

    def _denied(self, holders: Holders, now_us: int, cost: int, token: str | None = None) -> Answer:
        retry_after_us = NEVER
        if cost <= self.limit:  # Others expire, the soonest first, until the cost fits.
            others = sorted((s + ttl, c) for name, (s, ttl, c) in holders.items() if name != token)
            used = sum(held for _, held in others)
            for ends_us, held in others:
                used -= held
                retry_after_us = ends_us - now_us
                if used + cost <= self.limit:
                    break
        remaining = max(0, self.limit - _used(holders))
        reset_after_us = max(0, self.idle_at_us(holders) - now_us)
        return (False, remaining, retry_after_us, reset_after_us, 0)


def _used(holders: Holders) -> int:
    return sum(cost for _, _, cost in holders.values())


def _pulled(holders: Holders, state: Holders | None) -> bool:
    """Whether the clock stepped back behind one of the holders."""
    return any(held != (state or {})[token] for token, held in holders.items())


def _fresh_token(state: Holders | None, now_us: int) -> str:
    number = 0
    while (token := f"#{now_us}.{number}") in (state or {}):
        number += 1
    return token
