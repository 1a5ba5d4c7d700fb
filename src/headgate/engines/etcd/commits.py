"""Commits: when decisions are written, and when they are answered.

At most one commit is in flight. Changes made meanwhile go into the next one, which is sent before the answers of the
last are delivered, so that etcd never waits. The same bytes are sent until there is an answer.

`exact`   a decision is answered when the commit that contains its state is confirmed. One that depends on nothing
          unconfirmed (a denial, a peek) is answered at once, so a flood of denials costs etcd nothing.
`leased`  a decision is answered at once while few enough are unconfirmed, and none for too long; else as in `exact`. A
          commit is sent after a number of decisions or milliseconds.

No I/O and no clock: `Commits` is passed the time and returns what to send.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .entries import Entry
    from .journal import Journal
    from .shard import Shard

Waiter: TypeAlias = tuple[Any, Any, float]
"""A request that waits for a commit: its future, its answer, and when it stops waiting, in event loop time."""

LATE_S: Final = 0.1
"""In `exact`, no more decisions are made while a commit takes longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """When decisions are answered, and when a commit is sent."""

    exact: bool = True
    unconfirmed: int = 1_000
    """The maximum number of unconfirmed answers."""
    oldest_s: float = 1.0
    """The maximum age of an unconfirmed answer."""
    flush_events: int = 50
    flush_s: float = 0.01

    @property
    def late_s(self) -> float:
        """How long a commit may take before no more decisions are made."""
        return LATE_S if self.exact else self.oldest_s


class Commits:
    """The pipeline of one incarnation of a node."""

    def __init__(self, journal: Journal, shards: Mapping[int, Shard], policy: CommitPolicy) -> None:
        self.policy = policy
        self.journal = journal
        self._shards = shards
        self.fenced = False
        """Once set, no more decisions are made; checked on every decision."""
        self._waiting: list[Waiter] = []
        self.events = 0
        """Decisions since the last commit was sent."""
        self._since = 0.0
        """When the first of them was made."""
        self._flying: list[Waiter] = []
        self.flying_events = 0
        """Decisions in the commit in flight."""
        self._flying_since = 0.0
        """When the first decision in the commit in flight was made."""
        self.left = 0.0
        """When the commit in flight was sent."""
        self.in_flight = False
        self.entries: deque[Entry] = deque()
        """Entries of the commit in flight that are not confirmed yet, in order."""
        self.tidy = False
        """Whether the next commit should also clean up the journal."""
        self.unsure = False
        """Whether some attempt to send the current entry had no answer."""

    @property
    def unconfirmed(self) -> int:
        """The number of decisions in no confirmed commit."""
        return self.events + self.flying_events

    def answers_now(self, now: float) -> bool:
        """Count a decision that depends on something unconfirmed; returns whether it may be answered at once."""
        policy = self.policy
        if not self.events:
            self._since = now
        self.events += 1
        if policy.exact:
            return False
        oldest = self._flying_since if self.flying_events else self._since
        return self.unconfirmed <= policy.unconfirmed and now - oldest < policy.oldest_s

    def wait(self, future: Any, value: Any, ends: float) -> None:
        """Resolve `future` with the value once everything unconfirmed now is confirmed."""
        self._waiting.append((future, value, ends))

    def due(self, now: float) -> float | None:
        """Seconds until the next commit should be sent; `None` if there is nothing to commit."""
        if self.in_flight or self.fenced:
            return None
        if self._waiting:
            return 0.0
        if self.events:
            if self.policy.exact or self.events >= self.policy.flush_events:
                return 0.0
            return max(0.0, self._since + self.policy.flush_s - now)
        if self.tidy or any(shard.imports for shard in self._shards.values()):
            return 0.0
        return None

    def take_off(self, now: float, now_us: int) -> bool:
        """Start the next commit; false if there is nothing in it."""
        assert not self.in_flight
        self._flying, self._waiting = self._waiting, []
        self.flying_events, self.events = self.events, 0
        self._flying_since, self.left = self._since, now
        self.entries.extend(self.journal.pack(self._shards.values(), now_us, tidy=self.tidy))
        self.tidy = False
        self.in_flight = bool(self.entries)
        self.unsure = False
        return self.in_flight

    def confirmed(self) -> bool:
        """Record that the current entry is in etcd; true if it was the last of the commit."""
        self.entries.popleft()
        self.unsure = bool(self.entries)  # A part of it counts, whatever happens to the rest.
        return not self.entries

    def landed(self) -> list[Waiter]:
        """Record that the commit is in etcd; returns the requests to answer."""
        for shard in self._shards.values():
            if not shard.is_confirmed:
                shard.landed()
        confirmed_waiters, self._flying, self.flying_events = self._flying, [], 0
        self.in_flight = False
        return confirmed_waiters

    def expired(self, now: float) -> list[Waiter]:
        """Remove and return the requests that have waited long enough."""
        over = [one for one in (*self._flying, *self._waiting) if one[2] <= now]
        if over:
            self._flying = [one for one in self._flying if one[2] > now]
            self._waiting = [one for one in self._waiting if one[2] > now]
        return over

    def fence(self) -> tuple[list[Waiter], list[Waiter]]:
        """Stop deciding. Returns the requests whose decision is lost, and those whose outcome is unknown."""
        self.fenced = True
        sent, unsent = self._flying, self._waiting
        self._flying, self._waiting = [], []
        self.events = self.flying_events = 0
        if self.unsure:
            return unsent, sent
        return [*sent, *unsent], []
