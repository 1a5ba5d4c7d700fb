"""Commits: who is told what, and when.

At most one commit is on its way. What changes meanwhile goes with the next one, which leaves before anybody is told
about the last, so that etcd never waits for us. The same bytes are sent until there is an answer.

`exact`   an answer is given when the commit with the state behind it is confirmed. What rests on nothing unconfirmed
          (a denial, a peek) is answered at once, so a flood of denials costs etcd nothing.
`leased`  an answer is given at once while few enough are unconfirmed, and none for too long; else as in `exact`. A
          commit leaves when so many have gathered, or after so many milliseconds.

No I/O, no clock of its own: `Commits` is told the time and says what to send.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .entries import Entry
    from .journal import Journal
    from .shard import Shard

LATE_S: Final = 0.1
"""In `exact`, a commit that takes longer holds up those who come: they are not decided before it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """When an answer may be given, and when a commit leaves."""

    exact: bool = True
    unconfirmed: int = 1_000
    """How many answers may be unconfirmed at most."""
    oldest_s: float = 1.0
    """For how long one may be."""
    flush_events: int = 50
    flush_s: float = 0.01

    @property
    def late_s(self) -> float:
        """How long a commit may take before nothing more is decided on top of it."""
        return LATE_S if self.exact else self.oldest_s


class Waiter(NamedTuple):
    """Somebody who waits for a commit."""

    future: Any
    value: Any
    ends: float
    """When they stop waiting, by the time of the event loop."""


class Commits:
    """The pipeline of one incarnation of a node."""

    def __init__(self, journal: Journal, shards: Mapping[int, Shard], policy: CommitPolicy) -> None:
        self.policy = policy
        self.journal = journal
        self._shards = shards
        self.fenced = False
        """Once set, nothing is decided any more; checked with every decision."""
        self._waiting: list[Waiter] = []
        self.events = 0
        """Decisions since the last commit left."""
        self._since = 0.0
        """When the first of them was made."""
        self._flying: list[Waiter] = []
        self.flying_events = 0
        """Decisions in the commit on its way."""
        self._flying_since = 0.0
        """When the first decision in the commit on its way was made."""
        self.left = 0.0
        """When the commit on its way left."""
        self.in_flight = False
        self.entries: deque[Entry] = deque()
        """What is still to be confirmed of the commit on its way, in order."""
        self.tidy = False
        """Whether the next commit should get rid of what the journal does not need."""
        self.unsure = False
        """Whether some sending of the entry on its way had no answer."""

    @property
    def unconfirmed(self) -> int:
        """Decisions that no confirmed commit holds yet."""
        return self.events + self.flying_events

    def answers_now(self, now: float) -> bool:
        """Count a decision that rests on something unconfirmed; whether it may be told at once."""
        policy = self.policy
        if not self.events:
            self._since = now
        self.events += 1
        if policy.exact:
            return False
        oldest = self._flying_since if self.flying_events else self._since
        return self.unconfirmed <= policy.unconfirmed and now - oldest < policy.oldest_s

    def wait(self, future: Any, value: Any, ends: float) -> None:
        """Tell `future` the value once what is unconfirmed now is confirmed."""
        self._waiting.append(Waiter(future, value, ends))

    def due(self, now: float) -> float | None:
        """In how many seconds the next commit should leave; `None` if there is nothing to commit."""
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
        """Let a commit leave; false if there is nothing in it."""
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
        """The entry on its way is in etcd; true if that was the last one of the commit."""
        self.entries.popleft()
        self.unsure = bool(self.entries)  # A part of it counts, whatever becomes of the rest.
        return not self.entries

    def landed(self) -> list[Waiter]:
        """The commit is in etcd: those who can be told."""
        for shard in self._shards.values():
            shard.landed()
        told, self._flying, self.flying_events = self._flying, [], 0
        self.in_flight = False
        return told

    def expired(self, now: float) -> list[Waiter]:
        """Those who have waited for long enough; they are not told anything else."""
        over = [one for one in (*self._flying, *self._waiting) if one.ends <= now]
        if over:
            self._flying = [one for one in self._flying if one.ends > now]
            self._waiting = [one for one in self._waiting if one.ends > now]
        return over

    def fence(self) -> tuple[list[Waiter], list[Waiter]]:
        """Decide nothing any more. Returns those whose decision was lost, and those who cannot know."""
        self.fenced = True
        sent, unsent = self._flying, self._waiting
        self._flying, self._waiting = [], []
        self.events = self.flying_events = 0
        if self.unsure:
            return unsent, sent
        return [*sent, *unsent], []
