"""Concurrency: a limit on how many run at the same time; the slot of a crashed holder becomes free.

    limit 2   ├─ a ──────────┤              a slot ends when its holder lets go,
                 ├─ b ──────────┊ expired   or when it was not renewed for `ttl_us`
                      c? no     ├─ c ──▶

A slot is held under a token, so releasing it twice frees one slot, and an unknown token frees none. The state maps each
token to `(since_us, ttl_us, cost)`, and has their totals (see `_holders.py`). It also keeps the time of the latest
acquisition or renewal after that slot was released: otherwise a clock that flips could expire one slot per flip.
`take`, which has no token, holds a slot under a generated name until it expires or is refunded.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ._holders import Held, Holders
from .base import MAX_EXACT, MAX_MEMBERS, NEVER, Answer, Limit, Whole, later, require_whole

MIN_TTL_US: Final = 1_000
MAX_TTL_US: Final = 86_400_000_000
NOBODY: Final = Holders(None, (-MAX_EXACT, 0))


class Concurrency(Limit):
    """`limit` slots; one that is not renewed within `ttl_us` is free again."""

    __slots__ = ("ttl_us",)
    __match_args__ = ("limit", "ttl_us")
    name: ClassVar[str] = "concurrency"
    guarantee: ClassVar[str] = (
        "at most the limit at any time, as long as no holder keeps working after its slot has expired"
    )

    def __init__(self, limit: Whole, ttl_us: Whole = 30_000_000) -> None:
        self.limit = require_whole("limit of concurrency", limit, 0, MAX_MEMBERS)
        self.window_us = 0
        self.identity = self.name
        self.ttl_us = require_whole("ttl in microseconds", ttl_us, MIN_TTL_US, MAX_TTL_US)
        self.max_lead_us = self.ttl_us
        super().__init__(self.limit, self.ttl_us)

    def hold(
        self, state: Holders | None, now_us: int, cost: int, token: str
    ) -> tuple[Holders | None, Answer]:
        """Hold `cost` slots under `token` if they are free; a token that holds already is renewed."""
        seen, at_us = self.seen(state, now_us)
        holders = _current(seen, at_us)
        held = holders.get(token)
        used = holders.used - (held[2] if held is not None else 0)
        if used + cost > self.limit:
            return seen, later(self._denied(holders, at_us, cost, held), at_us - now_us)
        if cost:
            seen = holders = holders.holding(token, (at_us, self.ttl_us, cost))
        return seen, later(self._answer(holders, at_us), at_us - now_us)

    def release(self, state: Holders | None, now_us: int, token: str) -> Holders | None:
        """Release what `token` holds; returns the same state if it holds nothing."""
        if state is None or state.get(token) is None:
            return state
        return _current(*self.seen(state, now_us)).without(token)

    def renew(self, state: Holders | None, now_us: int, token: str) -> tuple[Holders | None, bool]:
        """Renew for another `ttl_us`; false when the slot has expired and another holder may have it."""
        seen, at_us = self.seen(state, now_us)
        holders = _current(seen, at_us)
        held = holders.get(token)
        if held is None:
            return seen, False
        return holders.holding(token, (at_us, self.ttl_us, held[2])), True

    def take(self, state: Holders | None, now_us: int, cost: int) -> tuple[Holders | None, Answer]:
        """Hold under a generated name until it expires or is refunded."""
        return self.hold(state, now_us, cost, _fresh_token(state, now_us))

    def _peek(self, state: Holders | None, at_us: int, cost: int) -> Answer:
        holders = _current(state, at_us)
        if holders.used + cost > self.limit:
            return self._denied(holders, at_us, cost)
        return self._answer(holders, at_us)

    def _force(self, state: Holders | None, at_us: int, cost: int) -> tuple[Holders | None, Answer]:
        holders = _current(state, at_us)
        if not cost:
            return state, self._answer(holders, at_us)
        held = (at_us, self.ttl_us, min(cost, MAX_MEMBERS))
        holders = holders.holding(_fresh_token(state, at_us), held)
        return holders, self._answer(holders, at_us)

    def mark(self, state: Holders) -> str:
        """The token that came last."""
        return state.last

    def _refund(
        self, state: Holders | None, mark: str, at_us: int, cost: int, low: int
    ) -> tuple[Holders | None, int]:
        """Give back slots that `mark` holds, if it holds any still."""
        holders = _current(state, at_us)
        found = holders.get(mark)
        if found is None:
            return state, 0
        since_us, ttl_us, held = found
        given = min(cost, held)
        if held > given:
            return holders.lowered(mark, (since_us, ttl_us, held - given)), given
        return holders.without(mark), given

    def _used(self, state: Holders | None, at_us: int) -> int:
        return _current(state, at_us).used

    def seen(self, state: Holders | None, now_us: int) -> tuple[Holders | None, int]:
        """The newest slot may be ahead of now by its own time to live, whatever the caller's."""
        if state is None:
            return None, now_us
        since_us, ttl_us = state.newest
        if since_us <= now_us:
            return state, now_us
        return (state, since_us) if since_us - now_us <= ttl_us else (state.cut(now_us), now_us)

    def latest_us(self, state: Holders) -> int:
        """When the newest slot was acquired or renewed."""
        return state.newest[0]

    def _cut(self, state: Holders, now_us: int) -> Holders:
        return state.cut(now_us)

    def idle_at_us(self, state: Holders) -> int:
        """When the last holder expires."""
        return state.ends_us

    def encode(self, state: Holders) -> tuple[tuple[str, int, int, int], ...]:
        """`(token, since_us, ttl_us, cost)` of each holder."""
        return tuple(sorted((token, *held) for token, held in state.items()))

    def decode(self, data: Any) -> Holders:
        """The inverse of `encode`."""
        holders = NOBODY
        for token, since_us, ttl_us, cost in data:
            if type(token) is not str:
                raise TypeError(f"a token is text, not {token!r}")
            require_whole("since_us", since_us, 0, MAX_EXACT)
            require_whole("ttl_us", ttl_us, MIN_TTL_US, MAX_TTL_US)
            require_whole("cost", cost, 1, MAX_MEMBERS)
            holders = holders.holding(token, (since_us, ttl_us, cost))
        return holders

    def _answer(self, holders: Holders, at_us: int) -> Answer:
        return (True, max(0, self.limit - holders.used), 0, max(0, holders.ends_us - at_us), 0)

    def _denied(self, holders: Holders, at_us: int, cost: int, own: Held | None = None) -> Answer:
        """The answer to `cost` slots that are not free; `own` are those that the token has already."""
        retry_after_us = NEVER
        if cost <= self.limit:  # Others expire, the soonest first, until the cost fits.
            used = holders.used - (own[2] if own is not None else 0)
            for ends_us, held in holders.endings():
                if own is not None and (ends_us, held) == (own[0] + own[1], own[2]):
                    own = None  # Among equal ones it does not matter which is its own.
                    continue
                used -= held
                retry_after_us = ends_us - at_us
                if used + cost <= self.limit:
                    break
        remaining = max(0, self.limit - holders.used)
        return (False, remaining, retry_after_us, max(0, holders.ends_us - at_us), 0)


def _current(state: Holders | None, at_us: int) -> Holders:
    return NOBODY if state is None else state.current(at_us)


def _fresh_token(state: Holders | None, now_us: int) -> str:
    number = 0
    while state is not None and state.get(f"#{now_us}.{number}") is not None:
        number += 1
    return f"#{now_us}.{number}"
