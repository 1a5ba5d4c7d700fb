"""A slow and obvious twin of each algorithm, to hold the fast ones against.

A twin keeps what happened as a plain list of charges and works every answer out from that list, from
the definition, without an idea of speed: it sums over all charges, counts in fractions, walks from
window to window, and finds `retry_after_us` by looking for the first microsecond that fits.

Where the clock may step back, what a twin remembers depends on what was written, and the rules are:

- a charge that lies ahead of now is *taken as now*; a look (`peek`, or a take of 0 units) does so
  without changing the charge;
- an admission pulls such charges to now for good, and forgets the charges that no longer count;
- a denial writes nothing unless some charge lies ahead of now, and then pulls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from math import ceil, floor
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


class Twin(ABC):
    """What every twin can be asked; the same questions as `Limit`, with the state inside."""

    @abstractmethod
    def take(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def peek(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def force(self, now_us: int, cost: int) -> Answer: ...

    @abstractmethod
    def mark(self) -> Any:
        """What a refund of the latest charge has to know."""

    @abstractmethod
    def refund(self, mark: Any, now_us: int, cost: int, refunded: int) -> int: ...

    @abstractmethod
    def used(self, now_us: int) -> int: ...


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

    def seen(self, now_us: int) -> list[Charge]:
        """Every charge, those ahead of now taken as now."""
        return [replace(one, at_us=min(one.at_us, now_us)) for one in self.charges]

    def write(self, now_us: int) -> None:
        """Pull what lies ahead of now, and forget what does not count any more."""
        self.charges = [one for one in self.seen(now_us) if self.counts(one, now_us)]

    def pull(self, now_us: int) -> None:
        """Pull what lies ahead of now."""
        self.charges = self.seen(now_us)

    def fits(self, charges: list[Charge], at_us: int, cost: int) -> bool:
        return self.in_use(charges, at_us) + cost <= self.limit

    def answer(self, now_us: int, cost: int, *, allowed: bool) -> Answer:
        charges = self.seen(now_us)
        sure_us = now_us + self.most_lasting_us
        retry_after_us = 0
        if cost > self.limit and not allowed:
            retry_after_us = NEVER
        elif not allowed:
            fits_us = first_time(lambda at_us: self.fits(charges, at_us, cost), now_us, sure_us)
            retry_after_us = fits_us - now_us
        free_us = first_time(
            lambda at_us: not any(self.counts(one, at_us) for one in charges), now_us, sure_us
        )
        remaining = max(0, floor(self.limit - self.in_use(charges, now_us)))
        return (allowed, remaining, retry_after_us, free_us - now_us, 0)

    def take(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(self.seen(now_us), now_us, cost)
        if allowed and cost:
            self.write(now_us)
            self.charge(now_us, cost)
        elif not allowed and any(one.at_us > now_us for one in self.charges):
            self.pull(now_us)
        return self.answer(now_us, cost, allowed=allowed)

    def peek(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(self.seen(now_us), now_us, cost)
        return self.answer(now_us, cost, allowed=allowed)

    def force(self, now_us: int, cost: int) -> Answer:
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

    def used(self, now_us: int) -> int:
        return ceil(self.in_use(self.seen(now_us), now_us))


class WindowTwin(Counting):
    """A charge counts until the end of its own window."""

    def __init__(
        self, limit: int, bounds_us: Callable[[int], tuple[int, int]], longest_us: int
    ) -> None:
        super().__init__(limit)
        self.bounds_us = bounds_us
        self.most_lasting_us = longest_us

    def counts(self, charge: Charge, at_us: int) -> bool:
        return self.bounds_us(charge.at_us) == self.bounds_us(at_us)

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def mark(self) -> int:
        """The window that was charged, by its start."""
        return self.bounds_us(self.charges[-1].at_us)[0]

    def refund(self, mark: int, now_us: int, cost: int, refunded: int) -> int:
        """While that window is not over, also when the clock stepped back to before it."""
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
        # At most 2**20 steps of whole microseconds, and no more than make limit * steps 2**51.
        most_steps = min(2**20, 2**51 // limit) if limit else 2**20
        least_us = ceil(Fraction(window_us, most_steps))
        # A step that divides the window is better, if it is at most a sixteenth (or 100 ms) longer.
        longest_us = least_us + min(least_us // 16, 100_000)
        whole = (one for one in range(least_us, longest_us + 1) if window_us % one == 0)
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

    def seen(self, now_us: int) -> list[Charge]:
        return self.counted(super().seen(now_us))

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

    def refund(self, mark: int, now_us: int, cost: int, refunded: int) -> int:
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

    def counts(self, charge: Charge, at_us: int) -> bool:
        return at_us < charge.at_us + self.most_lasting_us

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def mark(self) -> int:
        """When it was charged."""
        return self.charges[-1].at_us

    def refund(self, mark: int, now_us: int, cost: int, refunded: int) -> int:
        """Off the charges of that microsecond, while they count."""
        if cost and any(
            one.at_us == mark and self.counts(one, now_us) for one in self.seen(now_us)
        ):
            self.write(now_us)
            return self.lower(cost, lambda one: one.at_us == mark)
        return 0


class ConcurrencyTwin(Counting):
    """A charge is a number of slots, held until let go or until its time is up."""

    charges: list[Charge]

    def __init__(self, limit: int, ttl_us: int) -> None:
        super().__init__(limit)
        self.most_lasting_us = self.ttl_us = ttl_us
        self.names = 0

    def counts(self, charge: Charge, at_us: int) -> bool:
        assert isinstance(charge, Slots)
        return at_us < charge.at_us + charge.ttl_us

    def in_use(self, charges: list[Charge], at_us: int) -> int:
        return sum(one.cost for one in charges if self.counts(one, at_us))

    def charge(self, now_us: int, cost: int) -> None:
        self.names += 1
        self.hold_as(f"unnamed {self.names}", now_us, min(cost, 100_000))

    def pull(self, now_us: int) -> None:
        """Whoever writes the holders down again leaves out those whose time is up."""
        self.write(now_us)

    def hold_as(self, token: str, now_us: int, cost: int) -> None:
        self.charges.append(Slots(now_us, cost, token, self.ttl_us))

    def held_by(self, token: str, now_us: int) -> list[Charge]:
        """What `token` holds: one entry, or none."""
        return [
            one
            for one in self.seen(now_us)
            if isinstance(one, Slots) and one.token == token and self.counts(one, now_us)
        ]

    def let_go(self, token: str) -> None:
        self.charges = [
            one for one in self.charges if isinstance(one, Slots) and one.token != token
        ]

    def hold(self, now_us: int, cost: int, token: str) -> Answer:
        """A token that holds already is asked about, and charged, as if it had let go before."""
        others = [one for one in self.seen(now_us) if one not in self.held_by(token, now_us)]
        allowed = self.fits(others, now_us, cost)
        if allowed and cost:
            self.write(now_us)
            self.let_go(token)
            self.hold_as(token, now_us, cost)
        elif not allowed and any(one.at_us > now_us for one in self.charges):
            self.pull(now_us)
        answer = self.answer(now_us, cost, allowed=allowed)
        if allowed or cost > self.limit:
            return answer
        fits_us = first_time(
            lambda at_us: self.fits(others, at_us, cost), now_us, now_us + self.most_lasting_us
        )
        return (*answer[:2], fits_us - now_us, *answer[3:])

    def release(self, now_us: int, token: str) -> None:
        if any(isinstance(one, Slots) and one.token == token for one in self.charges):
            self.write(now_us)
            self.let_go(token)

    def renew(self, now_us: int, token: str) -> bool:
        held = self.held_by(token, now_us)
        if held:
            self.write(now_us)
            self.let_go(token)
            self.hold_as(token, now_us, held[0].cost)
        return bool(held)

    def mark(self) -> str:
        """The name of the latest holder."""
        latest = self.charges[-1]
        assert isinstance(latest, Slots)
        return latest.token

    def refund(self, mark: str, now_us: int, cost: int, refunded: int) -> int:
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
        self.history: list[tuple[int, Fraction]] = []

    @property
    def latest_us(self) -> int:
        return self.history[-1][0]

    def debt(self, now_us: int) -> Fraction:
        """Replay the history; time only pays when it passes forwards."""
        debt = Fraction(0)
        before_us = 0
        for at_us, amount in [*self.history, (now_us, Fraction(0))]:
            debt = max(Fraction(0), debt - max(0, at_us - before_us)) + amount
            before_us = at_us
        return debt

    def back(self, now_us: int) -> bool:
        """Whether the clock stepped back to before the latest entry."""
        return bool(self.history) and now_us < self.latest_us

    def pull(self, now_us: int) -> None:
        """What is owed at the latest entry is owed now."""
        if self.back(now_us):
            self.history = [(now_us, self.debt(now_us))]

    def charge(self, now_us: int, amount: Fraction) -> None:
        """Write one entry; the debt stops at `LARGEST` parts of a microsecond."""
        self.pull(now_us)
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

    def take(self, now_us: int, cost: int) -> Answer:
        allowed = self.fits(now_us, cost)
        if allowed and cost:
            self.charge(now_us, cost * self.unit)
        elif not allowed:
            self.pull(now_us)
        return self.answer(now_us, cost, allowed=allowed)

    def peek(self, now_us: int, cost: int) -> Answer:
        return self.answer(now_us, cost, allowed=self.fits(now_us, cost))

    def force(self, now_us: int, cost: int) -> Answer:
        if cost:
            self.charge(now_us, cost * self.unit)
        return self.answer(now_us, cost, allowed=True)

    def line_up(self, now_us: int, cost: int, wait_us: int) -> Answer:
        """Book the first whole microsecond at which the cost fits, and fill the bucket until then."""
        start_after_us = ceil(self.late(now_us, cost))
        full = self.capacity + start_after_us
        can_wait = start_after_us <= wait_us and full <= Fraction(LARGEST, 256)
        if self.fits(now_us, cost) or cost > self.burst or not can_wait:
            return self.take(now_us, cost)
        self.charge(now_us, full - self.debt(now_us))
        return (True, 0, start_after_us, ceil(full), 0)

    def line_ends_us(self, now_us: int) -> int:
        """When a debt of more than the bucket holds will have come down to that."""
        late = self.late(now_us, 0)
        return now_us + ceil(late) if late > 0 else 0

    def leave_line(self, mark: tuple[int, Fraction], now_us: int, cost: int) -> None:
        """Only if nothing was written since."""
        if self.mark() == mark:
            self.charge(now_us, -min(cost * self.unit, self.debt(now_us)))

    def mark(self) -> tuple[int, Fraction]:
        """The debt right after the take, and when that was."""
        return self.latest_us, self.debt(self.latest_us)

    def refund(self, mark: tuple[int, Fraction], now_us: int, cost: int, refunded: int) -> int:
        """What was taken lies at the end of the debt of its day; that much of it is not paid yet."""
        marked_us, debt = mark
        unpaid = debt - max(0, now_us - marked_us) - Fraction(refunded, 256)
        given = max(Fraction(0), min(cost * self.unit, unpaid, self.debt(now_us)))
        if given:
            self.charge(now_us, -given)
        return int(given * 256)

    def used(self, now_us: int) -> int:
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
        self.facts: Pressure | None = None

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
        """The facts of the window that is running; a window ahead of it is taken as it."""
        start_us = now_us // self.window_us * self.window_us
        facts = self.facts or Pressure(start_us)
        while facts.start_us < start_us and not facts.is_calm():
            facts = self.next_window(facts)
        cooling_since_us = facts.cooling_since_us
        if cooling_since_us is not None:
            cooling_since_us = min(cooling_since_us, now_us)
        return replace(
            facts,
            start_us=start_us,
            admitted=list(facts.admitted),
            denied=list(facts.denied),
            cooling_since_us=cooling_since_us,
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

    def take(self, now_us: int, cost: int) -> Answer:
        if cost == 0 or cost > self.limit:
            return self.peek(now_us, cost)
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

    def peek(self, now_us: int, cost: int) -> Answer:
        facts = self.seen(now_us)
        allowed = self.fits(facts, now_us, cost)
        answer = self.answer(facts, now_us, allowed=allowed)
        return (False, answer[1], NEVER, *answer[3:]) if cost > self.limit else answer

    def force(self, now_us: int, cost: int) -> Answer:
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

    def refund(self, mark: int, now_us: int, cost: int, refunded: int) -> int:
        """Into the window that was charged, while it lasts."""
        facts = self.seen(now_us)
        if mark != facts.start_us:
            return 0
        self.facts = facts
        given = min(cost, sum(facts.admitted))
        left = sum(facts.admitted) - given
        facts.admitted = [left] if left else []
        return given

    def used(self, now_us: int) -> int:
        return sum(self.seen(now_us).admitted)


class AdaptiveTwin(Twin):
    """Three twins, of which one is asked; what it admits is charged to the other two."""

    def __init__(self, limit: int, window_us: int, burst: int, chosen: str) -> None:
        self.twins: dict[str, Twin] = {
            "sliding_window": SlidingWindowTwin(limit, window_us),
            "token_bucket": TokenBucketTwin(limit, window_us, burst),
            "exponential_backoff": ExponentialBackoffTwin(limit, window_us),
        }
        self.chosen = chosen

    def take(self, now_us: int, cost: int) -> Answer:
        answer = self.twins[self.chosen].take(now_us, cost)
        if answer[0]:
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

    def refund(self, mark: dict[str, Any], now_us: int, cost: int, refunded: int) -> int:
        """In all three; what counts as given is what the bucket gave."""
        given = {
            name: twin.refund(mark[name], now_us, cost, refunded)
            for name, twin in self.twins.items()
        }
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
