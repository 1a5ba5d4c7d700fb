"""A slow and obvious twin of each algorithm, to hold the fast ones against.

A twin keeps what happened as a plain list of charges and works every answer out from that list, from the definition,
without an idea of speed: it sums over all charges, counts in fractions, walks from window to window, and finds
`retry_after_us` by looking for the first microsecond that fits.

Where the clock steps back, a twin has a time of its own, `time_us`: the latest moment that it has written. It never
runs backwards, as long as it is ahead of now by no more than `max_lead_us`: what happens then happens at that time, and
the answers' times are counted from now. A time further ahead is cut to now, with everything that is ahead of now. All
of this is in `Twin`; what the twins themselves are told is when something happens, and that never runs backwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

from headgate.algorithms import NEVER, Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

Number: TypeAlias = int | Fraction
T = TypeVar("T")

LARGEST = 2**53 - 1
"""What every count stops at: the largest integer that a double holds exactly."""


MOST_LEAD_US = 60_000_000


class Twin(ABC):
    """What every twin can be asked; the same questions as `Limit`, with the state inside."""

    max_lead_us: int
    """How far ahead of now its own time is believed."""

    @property
    @abstractmethod
    def time_us(self) -> int:
        """The latest moment it has written; 0 for never."""

    @abstractmethod
    def cut(self, now_us: int) -> None:
        """Nothing was later than now."""

    def at(self, now_us: int) -> int:
        """When what happens now happens."""
        if now_us + self.max_lead_us < self.time_us:
            self.cut(now_us)
        return max(now_us, self.time_us)

    def from_now(self, answer: Answer, lead_us: int) -> Answer:
        """An answer for a moment that is ahead of now: all that one has to wait for takes so much longer."""
        allowed, remaining, retry_us, reset_us, level = answer
        retry_us += lead_us if retry_us > 0 else 0
        reset_us += lead_us if reset_us > 0 else 0
        return (allowed, remaining, retry_us, reset_us, level)

    def take(self, now_us: int, cost: int) -> Answer:
        at_us = self.at(now_us)
        return self.from_now(self.take_at(at_us, cost), at_us - now_us)

    def peek(self, now_us: int, cost: int) -> Answer:
        """Who only looks changes nothing."""
        looker = deepcopy(self) if now_us < self.time_us else self
        at_us = looker.at(now_us)
        return self.from_now(looker.peek_at(at_us, cost), at_us - now_us)

    def force(self, now_us: int, cost: int) -> Answer:
        at_us = self.at(now_us)
        return self.from_now(self.force_at(at_us, cost), at_us - now_us)

    def refund(self, mark: Any, now_us: int, cost: int) -> int:
        return self.refund_at(mark, self.at(now_us), cost)

    def used(self, now_us: int) -> int:
        looker = deepcopy(self) if now_us < self.time_us else self
        return looker.used_at(looker.at(now_us))

    @abstractmethod
    def take_at(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def peek_at(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def force_at(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def mark(self) -> Any:
        """What a refund of the latest charge has to know."""

    @abstractmethod
    def refund_at(self, mark: Any, now_us: int, cost: int) -> int: ...

    @abstractmethod
    def used_at(self, now_us: int) -> int: ...


@dataclass
class Charge:
    """So many units were charged then."""

    at_us: int
    cost: int


@dataclass
class Slots(Charge):
    """So many slots are held since then, under a name, for so long."""

    token: str
    ttl_us: int


def first_time(holds: Callable[[int], bool], now_us: int, sure_us: int) -> int:
    """The first microsecond from now on at which `holds`; once it does, it stays so."""
    low, high = now_us, sure_us
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class Counting(Twin):
    """Twins for which a charge counts for a while, and the sum of what counts has a limit."""

    most_lasting_us: int
    """No charge counts for longer than this."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.charges: list[Charge] = []
        self.written_us = 0

    @property
    def time_us(self) -> int:
        return self.written_us

    def told_time(self, now_us: int) -> int:
        """What is remembered of the moment of a charge."""
        return now_us

    def cut(self, now_us: int) -> None:
        self.charges = [
            replace(one, at_us=min(one.at_us, now_us))
            for one in self.charges
            if self.counts(one, now_us)
        ]
        self.written_us = self.told_time(now_us)

    @abstractmethod
    def counts(self, charge: Charge, at_us: int) -> bool:
        """Whether `charge` is remembered at that time."""

    @abstractmethod
    def in_use(self, charges: list[Charge], at_us: int) -> Number:
        """The sum of what counts at that time."""

    def charge(self, now_us: int, cost: int) -> None:
        """Write one charge, which stops where the sum would be more than `LARGEST`."""
        room = LARGEST - ceil(self.in_use(self.charges, now_us))
        self.charges.append(Charge(now_us, min(cost, room)))

    def write(self, now_us: int) -> None:
        """Forget what does not count any more."""
        self.charges = [one for one in self.charges if self.counts(one, now_us)]
        self.written_us = self.told_time(now_us)

    def fits(self, charges: list[Charge], at_us: int, cost: int) -> bool:
        return self.in_use(charges, at_us) + cost <= self.limit

    def answer(self, now_us: int, cost: int, *, allowed: bool) -> Answer:
        charges = self.charges
        sure_us = now_us + self.most_lasting_us
        retry_after_us = 0
        if cost > self.limit and not allowed:
            retry_after_us = NEVER
        elif not allowed:
            fits_us = first_time(lambda at_us: self.fits(charges, at_us, cost), now_us, sure_us)
            retry_after_us = fits_us - now_us
        free_us = first_time(
            lambda at_us: not any(one.cost and self.counts(one, at_us) for one in charges),
            now_us,
            sure_us,
        )
        remaining = max(0, floor(self.limit - self.in_use(charges, now_us)))
        return (allowed, remaining, retry_after_us, free_us - now_us, 0)

    def take_at(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(self.charges, now_us, cost)
        if allowed and cost:
            self.write(now_us)
            self.charge(now_us, cost)
        return self.answer(now_us, cost, allowed=allowed)

    def peek_at(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(self.charges, now_us, cost)
        return self.answer(now_us, cost, allowed=allowed)

    def force_at(self, now_us: int, cost: int) -> Answer:
        if cost:
            self.write(now_us)
            self.charge(now_us, cost)
        return self.answer(now_us, cost, allowed=True)

    def lower(self, cost: int, which: Callable[[Charge], bool]) -> int:
        """Take up to `cost` units off the charges in question; return how many."""
        given = 0
        for one in filter(which, self.charges):
            part = min(cost - given, one.cost)
            one.cost -= part
            given += part
        self.charges = [one for one in self.charges if one.cost]
        return given

    def used_at(self, now_us: int) -> int:
        return ceil(self.in_use(self.charges, now_us))


class WindowTwin(Counting):
    """A charge counts until the end of its own window."""

    def __init__(
        self, limit: int, bounds_us: Callable[[int], tuple[int, int]], longest_us: int
    ) -> None:
        super().__init__(limit)
        self.bounds_us = bounds_us
        self.most_lasting_us = longest_us
        self.max_lead_us = min(longest_us, MOST_LEAD_US)

    def told_time(self, now_us: int) -> int:
        """Only the window."""
        return self.bounds_us(now_us)[0]

    def cut(self, now_us: int) -> None:
        """Of what its window holds nobody knows when it was."""
        now = [replace(one, at_us=now_us) for one in self.charges if self.counts(one, self.time_us)]
        self.charges, self.written_us = now, self.told_time(now_us)

    def counts(self, charge: Charge, at_us: int) -> bool:
        return self.bounds_us(charge.at_us) == self.bounds_us(at_us)

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def mark(self) -> int:
        """The window that was charged, by its start."""
        return self.bounds_us(self.charges[-1].at_us)[0]

    def refund_at(self, mark: int, now_us: int, cost: int) -> int:
        """While that window is not over."""
        if mark < self.bounds_us(now_us)[0]:
            return 0
        return self.lower(cost, lambda one: self.bounds_us(one.at_us)[0] == mark)


def aligned(window_us: int) -> Callable[[int], tuple[int, int]]:
    """Windows of equal length, counted from the epoch."""

    def bounds_us(at_us: int) -> tuple[int, int]:
        number = at_us // window_us
        return number * window_us, (number + 1) * window_us

    return bounds_us


class SlidingWindowTwin(Counting):
    """A charge counts in full in its own window, and fades out in steps during the next."""

    def __init__(self, limit: int, window_us: int) -> None:
        super().__init__(limit)
        self.window_us = window_us
        self.most_lasting_us = 2 * window_us
        self.max_lead_us = min(window_us, MOST_LEAD_US)
        # At most 2**20 steps of whole microseconds, and no more than make limit * steps 2**51.
        most_steps = min(2**20, 2**51 // limit) if limit else 2**20
        least_us = ceil(Fraction(window_us, most_steps))
        # A step that divides the window is better, if it is at most a sixteenth longer and has four digits before its
        # zeros.
        grain = max(1, 10 ** (floor(log10(least_us)) - 3)) if least_us >= 1_000 else 1
        round_ones = range(ceil(Fraction(least_us, grain)) * grain, least_us * 17 // 16 + 1, grain)
        whole = [one for one in (least_us, *round_ones) if window_us % one == 0]
        self.step_us = min(whole, default=least_us)
        self.steps = ceil(Fraction(window_us, self.step_us))

    def windows_ago(self, charge: Charge, at_us: int) -> int:
        return at_us // self.window_us - charge.at_us // self.window_us

    def counts(self, charge: Charge, at_us: int) -> bool:
        return self.windows_ago(charge, at_us) <= 1

    def in_use(self, charges: list[Charge], at_us: int) -> Fraction:
        ends_us = (at_us // self.window_us + 1) * self.window_us
        weight = Fraction(ceil(Fraction(ends_us - at_us, self.step_us)), self.steps)
        current = sum(one.cost for one in charges if self.windows_ago(one, at_us) == 0)
        previous = sum(one.cost for one in charges if self.windows_ago(one, at_us) == 1)
        return previous * weight + current

    def charge(self, now_us: int, cost: int) -> None:
        self.charges = self.counted([*self.charges, Charge(now_us, cost)])

    def told_time(self, now_us: int) -> int:
        """Only the window."""
        return now_us // self.window_us * self.window_us

    def cut(self, now_us: int) -> None:
        """Of what its windows hold nobody knows when it was."""
        now = [replace(one, at_us=now_us) for one in self.charges if self.counts(one, self.time_us)]
        self.charges, self.written_us = self.counted(now), self.told_time(now_us)

    def counted(self, charges: list[Charge]) -> list[Charge]:
        """The count of a window stops at 2**51 over the number of steps, to stay exact."""
        counted: list[Charge] = []
        for one in charges:
            own = sum(other.cost for other in counted if self.windows_ago(other, one.at_us) == 0)
            counted.append(replace(one, cost=min(one.cost, 2**51 // self.steps - own)))
        return counted

    def mark(self) -> int:
        """The window that was charged, by its start."""
        return self.charges[-1].at_us // self.window_us * self.window_us

    def refund_at(self, mark: int, now_us: int, cost: int) -> int:
        """Into this window or the one before, whichever was charged."""
        place = Charge(mark, 0)
        if self.windows_ago(place, now_us) not in {0, 1}:
            return 0
        self.write(now_us)
        return self.lower(cost, lambda one: self.windows_ago(one, mark) == 0)


class SlidingLogTwin(Counting):
    """A charge counts for exactly one window."""

    def __init__(self, limit: int, window_us: int) -> None:
        super().__init__(limit)
        self.most_lasting_us = window_us
        self.max_lead_us = min(window_us, MOST_LEAD_US)

    def counts(self, charge: Charge, at_us: int) -> bool:
        return at_us < charge.at_us + self.most_lasting_us

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def mark(self) -> int:
        """When it was charged."""
        return self.charges[-1].at_us

    def refund_at(self, mark: int, now_us: int, cost: int) -> int:
        """Off the charges of that microsecond, while they count."""
        given = self.lower(cost, lambda one: one.at_us == mark and self.counts(one, now_us))
        if given:
            self.write(now_us)
        return given


class ConcurrencyTwin(Counting):
    """A charge is a number of slots, held until let go or until its time is up."""

    charges: list[Charge]

    def __init__(self, limit: int, ttl_us: int) -> None:
        super().__init__(limit)
        self.most_lasting_us = self.ttl_us = self.max_lead_us = (
            ttl_us  # All have the same one here.
        )
        self.names = 0
        self.held_us = 0

    @property
    def time_us(self) -> int:
        """When somebody held or renewed last, also if that was let go since."""
        return self.held_us

    def cut(self, now_us: int) -> None:
        super().cut(now_us)
        self.held_us = min(self.held_us, now_us)

    def counts(self, charge: Charge, at_us: int) -> bool:
        assert isinstance(charge, Slots)
        return at_us < charge.at_us + charge.ttl_us

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def charge(self, now_us: int, cost: int) -> None:
        self.names += 1
        self.hold_as(f"unnamed {self.names}", now_us, min(cost, 100_000))

    def hold_as(self, token: str, now_us: int, cost: int) -> None:
        self.charges.append(Slots(now_us, cost, token, self.ttl_us))
        self.held_us = max(self.held_us, now_us)

    def held_by(self, token: str, now_us: int) -> list[Charge]:
        """What `token` holds: one entry, or none."""
        return [
            one
            for one in self.charges
            if isinstance(one, Slots) and one.token == token and self.counts(one, now_us)
        ]

    def release_gradually(self, token: str) -> None:
        self.charges = [
            one for one in self.charges if isinstance(one, Slots) and one.token != token
        ]

    def hold(self, now_us: int, cost: int, token: str) -> Answer:
        at_us = self.at(now_us)
        return self.from_now(self.hold_at(at_us, cost, token), at_us - now_us)

    def hold_at(self, now_us: int, cost: int, token: str) -> Answer:
        """A token that holds already is asked about, and charged, as if it had let go before."""
        others = [one for one in self.charges if one not in self.held_by(token, now_us)]
        allowed = self.fits(others, now_us, cost)
        if allowed and cost:
            self.write(now_us)
            self.release_gradually(token)
            self.hold_as(token, now_us, cost)
        answer = self.answer(now_us, cost, allowed=allowed)
        if allowed or cost > self.limit:
            return answer
        fits_us = first_time(
            lambda at_us: self.fits(others, at_us, cost), now_us, now_us + self.most_lasting_us
        )
        return (*answer[:2], fits_us - now_us, *answer[3:])

    def release(self, now_us: int, token: str) -> None:
        if any(isinstance(one, Slots) and one.token == token for one in self.charges):
            self.write(self.at(now_us))
            self.release_gradually(token)

    def renew(self, now_us: int, token: str) -> bool:
        at_us = self.at(now_us)
        held = self.held_by(token, at_us)
        if held:
            self.write(at_us)
            self.release_gradually(token)
            self.hold_as(token, at_us, held[0].cost)
        return bool(held)

    def mark(self) -> str:
        """The name of the latest holder."""
        latest = self.charges[-1]
        assert isinstance(latest, Slots)
        return latest.token

    def refund_at(self, mark: str, now_us: int, cost: int) -> int:
        """Off what that holder still holds."""
        if not self.held_by(mark, now_us):
            return 0
        self.write(now_us)
        return self.lower(cost, lambda one: isinstance(one, Slots) and one.token == mark)


class TokenBucketTwin(Twin):
    """Every charge is a debt in time, paid off one after the other at one microsecond each."""

    def __init__(self, limit: int, window_us: int, burst: int) -> None:
        self.burst = burst
        # A unit costs window / limit microseconds, rounded up to 1/256 of one.
        self.unit = Fraction(ceil(Fraction(256 * window_us, limit)), 256) if limit else Fraction(0)
        self.capacity = burst * self.unit
        self.max_lead_us = min(window_us, MOST_LEAD_US)
        self.history: list[tuple[int, Fraction]] = []

    @property
    def time_us(self) -> int:
        return self.history[-1][0] if self.history else 0

    def cut(self, now_us: int) -> None:
        """What is owed at the latest entry is owed now: as if everything had been so much earlier."""
        lead_us = self.time_us - now_us
        self.history = [(at_us - lead_us, amount) for at_us, amount in self.history]

    def debt(self, now_us: int) -> Fraction:
        """Replay the history; time pays."""
        debt = Fraction(0)
        before_us = now_us
        for at_us, amount in [*self.history, (now_us, Fraction(0))]:
            debt = max(Fraction(0), debt - (at_us - before_us)) + amount if debt else amount
            before_us = at_us
        return debt

    def charge(self, now_us: int, amount: Fraction) -> None:
        """Write one entry; the debt stops at `LARGEST` parts of a microsecond."""
        room = Fraction(LARGEST, 256) - self.debt(now_us)
        self.history.append((now_us, min(amount, room)))

    def fits(self, now_us: int, cost: int) -> bool:
        return cost <= self.burst and self.late(now_us, cost) <= 0

    def late(self, now_us: int, cost: int) -> Fraction:
        """How long until this cost fits."""
        return self.debt(now_us) + cost * self.unit - self.capacity

    def answer(self, now_us: int, cost: int, *, allowed: bool) -> Answer:
        debt = self.debt(now_us)
        remaining = max(0, floor((self.capacity - debt) / self.unit)) if self.unit else 0
        retry_after_us = 0
        if not allowed:
            retry_after_us = NEVER if cost > self.burst else ceil(self.late(now_us, cost))
        return (allowed, remaining, retry_after_us, ceil(debt), 0)

    def take_at(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(now_us, cost)
        if allowed and cost:
            self.charge(now_us, cost * self.unit)
        return self.answer(now_us, cost, allowed=allowed)

    def peek_at(self, now_us: int, cost: int) -> Answer:
        return self.answer(now_us, cost, allowed=self.fits(now_us, cost))

    def force_at(self, now_us: int, cost: int) -> Answer:
        if cost:
            self.charge(now_us, cost * self.unit)
        return self.answer(now_us, cost, allowed=True)

    def line_up(self, now_us: int, cost: int, wait_us: int) -> Answer:
        """Book the first whole microsecond at which the cost fits, and fill the bucket until then."""
        at_us = self.at(now_us)
        start_after_us = ceil(self.late(at_us, cost))
        full = self.capacity + start_after_us
        can_wait = at_us + start_after_us <= now_us + wait_us and full <= Fraction(LARGEST, 256)
        if self.fits(at_us, cost) or cost > self.burst or not can_wait:
            return self.take(now_us, cost)
        self.charge(at_us, full - self.debt(at_us))
        return self.from_now((True, 0, start_after_us, ceil(full), 0), at_us - now_us)

    def leave_line(self, mark: int, now_us: int) -> bool:
        """Only if nothing was charged since: then it is as if the place had not been booked."""
        if any(amount for _, amount in self.history[mark + 1 :]):
            return False
        at_us = self.at(now_us)
        self.history[mark] = (self.history[mark][0], Fraction(0))
        self.charge(at_us, Fraction(0))
        return True

    def mark(self) -> int:
        """Which of the entries it is."""
        return len(self.history) - 1

    def refund_at(self, mark: int, now_us: int, cost: int) -> int:
        """Replay the history with so much less."""
        before = self.debt(now_us)
        at_us, amount = self.history[mark]
        self.history[mark] = (at_us, amount - cost * self.unit)
        given = before - self.debt(now_us)
        if given:
            self.charge(now_us, Fraction(0))
        else:  # It has all flowed back by now, which is no reason to have it back a moment ago.
            self.history[mark] = (at_us, amount)
        return int(given * 256)

    def used_at(self, now_us: int) -> int:
        return ceil(self.debt(now_us) / self.unit) if self.unit else 0


@dataclass
class Pressure:
    """The facts of one window: what was admitted and denied in it, and what it inherited."""

    start_us: int
    admitted: list[int] = field(default_factory=list)
    denied: list[int] = field(default_factory=list)
    denied_in_a_row: int = 0
    level: int = 0
    cooling_since_us: int | None = None

    def is_calm(self) -> bool:
        return not (self.admitted or self.denied or self.denied_in_a_row or self.level)


class ExponentialBackoffTwin(Twin):
    """Walks from window to window, and at the end of each asks whether it saw a denial."""

    def __init__(
        self,
        limit: int,
        window_us: int,
        denials_per_level: int = 10,
        max_level: int = 5,
        retry_us: int = 1_000_000,
    ) -> None:
        self.limit = limit
        self.window_us = window_us
        self.denials_per_level = denials_per_level
        self.max_level = max_level
        self.retry_us = retry_us
        self.max_lead_us = min(window_us, MOST_LEAD_US)
        self.facts: Pressure | None = None

    @property
    def time_us(self) -> int:
        return max(self.facts.start_us, self.facts.cooling_since_us or 0) if self.facts else 0

    def cut(self, now_us: int) -> None:
        assert self.facts is not None
        cooling_since_us = self.facts.cooling_since_us
        self.facts = replace(
            self.facts,
            start_us=min(self.facts.start_us, now_us // self.window_us * self.window_us),
            cooling_since_us=None if cooling_since_us is None else min(cooling_since_us, now_us),
        )

    def next_window(self, facts: Pressure) -> Pressure:
        """What the window after this one inherits."""
        quiet = not facts.denied
        return Pressure(
            start_us=facts.start_us + self.window_us,
            denied_in_a_row=0 if quiet else facts.denied_in_a_row,
            level=max(0, facts.level - 1) if quiet else facts.level,
            cooling_since_us=facts.cooling_since_us,
        )

    def seen(self, now_us: int) -> Pressure:
        """The facts of the window that is running."""
        start_us = now_us // self.window_us * self.window_us
        facts = self.facts or Pressure(start_us)
        while facts.start_us < start_us and not facts.is_calm():
            facts = self.next_window(facts)
        return replace(
            facts, start_us=start_us, admitted=list(facts.admitted), denied=list(facts.denied)
        )

    def limit_now(self, facts: Pressure) -> int:
        halved = self.limit
        for _ in range(facts.level):
            halved //= 2
        return max(halved, min(1, self.limit))

    def is_cooling(self, facts: Pressure, now_us: int) -> bool:
        since_us = facts.cooling_since_us
        return since_us is not None and now_us < since_us + self.window_us

    def fits(self, facts: Pressure, now_us: int, cost: int) -> bool:
        if self.is_cooling(facts, now_us):
            return False
        return sum(facts.admitted) + cost <= self.limit_now(facts)

    def answer(self, facts: Pressure, now_us: int, *, allowed: bool) -> Answer:
        remaining = max(0, self.limit_now(facts) - sum(facts.admitted))
        if self.is_cooling(facts, now_us):
            remaining = 0
        retry_after_us = 0 if allowed else self.retry_us * 2**facts.level
        return (
            allowed,
            remaining,
            retry_after_us,
            self.calm_us(facts, now_us) - now_us,
            facts.level,
        )

    def calm_us(self, facts: Pressure, now_us: int) -> int:
        """When everything is forgiven if nobody comes."""
        calm_us = now_us
        if facts.cooling_since_us is not None:
            calm_us = max(calm_us, facts.cooling_since_us + self.window_us)
        while not facts.is_calm():
            facts = self.next_window(facts)
            calm_us = max(calm_us, facts.start_us)
        return calm_us

    def take_at(self, now_us: int, cost: int) -> Answer:
        if cost == 0 or cost > self.limit:
            return self.peek_at(now_us, cost)
        facts = self.facts = self.seen(now_us)
        if self.fits(facts, now_us, cost):
            facts.admitted.append(cost)
            facts.denied_in_a_row = 0
            return self.answer(facts, now_us, allowed=True)
        facts.denied.append(now_us)
        if not self.is_cooling(facts, now_us):
            facts.denied_in_a_row += 1
            if facts.denied_in_a_row == self.denials_per_level:
                self.step_up(facts, now_us)
        return self.answer(facts, now_us, allowed=False)

    def step_up(self, facts: Pressure, now_us: int) -> None:
        facts.denied_in_a_row = 0
        facts.level = min(facts.level + 1, self.max_level)
        if facts.level == self.max_level:
            facts.cooling_since_us = now_us

    def peek_at(self, now_us: int, cost: int) -> Answer:
        facts = self.seen(now_us)
        allowed = self.fits(facts, now_us, cost)
        answer = self.answer(facts, now_us, allowed=allowed)
        return (False, answer[1], NEVER, *answer[3:]) if cost > self.limit else answer

    def force_at(self, now_us: int, cost: int) -> Answer:
        facts = self.seen(now_us)
        if cost:
            self.facts = facts
            facts.admitted.append(min(cost, LARGEST - sum(facts.admitted)))
            facts.denied_in_a_row = 0
        return self.answer(facts, now_us, allowed=True)

    def mark(self) -> int:
        """The window that was charged, by its start."""
        assert self.facts is not None
        return self.facts.start_us

    def refund_at(self, mark: int, now_us: int, cost: int) -> int:
        """Into the window that was charged, while it lasts."""
        facts = self.seen(now_us)
        if mark != facts.start_us:
            return 0
        self.facts = facts
        given = min(cost, sum(facts.admitted))
        left = sum(facts.admitted) - given
        facts.admitted = [left] if left else []
        return given

    def used_at(self, now_us: int) -> int:
        return sum(self.seen(now_us).admitted)


class AdaptiveTwin:
    """Three twins, each with a time of its own, of which one is asked; what it admits is charged to the other two."""

    def __init__(self, limit: int, window_us: int, burst: int, chosen: str) -> None:
        self.twins: dict[str, Twin] = {
            "sliding_window": SlidingWindowTwin(limit, window_us),
            "token_bucket": TokenBucketTwin(limit, window_us, burst),
            "exponential_backoff": ExponentialBackoffTwin(limit, window_us),
        }
        self.chosen = chosen

    def take(self, now_us: int, cost: int) -> Answer:
        answer = self.twins[self.chosen].take(now_us, cost)
        if answer[0] and cost:
            for name, twin in self.twins.items():
                if name != self.chosen:
                    twin.force(now_us, cost)
        return answer

    def peek(self, now_us: int, cost: int) -> Answer:
        return self.twins[self.chosen].peek(now_us, cost)

    def force(self, now_us: int, cost: int) -> Answer:
        return {name: twin.force(now_us, cost) for name, twin in self.twins.items()}[self.chosen]

    def mark(self) -> dict[str, Any]:
        return {name: twin.mark() for name, twin in self.twins.items()}

    def refund(self, mark: dict[str, Any], now_us: int, cost: int) -> int:
        """In all three; what counts as given is what the bucket gave."""
        given = {name: twin.refund(mark[name], now_us, cost) for name, twin in self.twins.items()}
        return given["token_bucket"]

    def used(self, now_us: int) -> int:
        return self.twins[self.chosen].used(now_us)


MINUTE_US = 60_000_000
DAY = timedelta(days=1)


class CalendarTwin:
    """Calendar periods, found by looking at one minute and one day after the other.

    A day begins at the first instant that bears its date or a later one; what follows belongs to it
    even if the clocks are then set back to the day before.
    """

    def __init__(self, period: str, tz: str, anchor: int) -> None:
        self.period = period
        self.zone = ZoneInfo(tz)
        self.anchor = anchor
        self.bounds_us = cache(self._bounds_us)

    def is_first(self, day: date) -> bool:
        """Whether a period begins on that day."""
        if self.period == "day":
            return True
        if self.period == "week":
            return day.isoweekday() == self.anchor
        last_of_month = (day + DAY).month != day.month
        return day.day == self.anchor or (last_of_month and day.day < self.anchor)

    def _bounds_us(self, at_us: int) -> tuple[int, int]:
        first = local_date(self.zone, at_us)
        while begins_us(self.zone, first + DAY) <= at_us:
            first += DAY
        while not self.is_first(first):
            first -= DAY
        following = first + DAY
        while not self.is_first(following):
            following += DAY
        return begins_us(self.zone, first), begins_us(self.zone, following)


def local_date(zone: ZoneInfo, at_us: int) -> date:
    return datetime.fromtimestamp(at_us // 1_000_000, zone).date()


@cache
def begins_us(zone: ZoneInfo, day: date) -> int:
    """The first minute that bears the date of `day` or a later one."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    at_us = int((noon - 2 * DAY).timestamp()) * 1_000_000
    while local_date(zone, at_us) < day:
        at_us += MINUTE_US
    return at_us
