"""What a rate means, in plain words: what was read, how it is counted, and what follows from that.

One function per algorithm says what is worth knowing before choosing it. The numbers are promises of the
algorithm (its module docstring proves them), not readings off a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import CalendarWindow, ExponentialBackoff, Limit, TokenBucket
from ..algorithms.calendar import WEEKDAYS
from ..rate import Rate, limits_of, span_text
from ._simulation import OneLimit, Timeline, edges_of, plan_start, run
from ._words import about, count, duration, iso, moment

if TYPE_CHECKING:
    from collections.abc import Callable

FEW: Final = 20
"""Below this many units a window, it shows that units are whole."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One rate, as the text and the JSON output tell it."""

    rate: Rate
    limit: Limit
    cost: int
    now_us: int
    reason: str
    facts: tuple[str, ...]
    timeline: Timeline

    @property
    def headings(self) -> list[tuple[str, str]]:
        """What was read from the text, as names and values."""
        rate, limit = self.rate, self.limit
        found = [("limit", f"{count(rate.limit, 'unit')} per {window_name(rate)}")]
        if isinstance(limit, TokenBucket) and limit.limit:
            given = "" if rate.burst else ", as none was given: the limit"
            found.append(("burst", f"{count(limit.burst, 'unit')} at once{given}"))
        elif rate.burst is not None:
            found.append(("burst", f"{count(rate.burst, 'unit')} at once"))
        if isinstance(limit, CalendarWindow):
            calendar = limit.calendar
            start_us, end_us = limit.bounds_us(self.now_us)
            begins = {
                "day": "at midnight",
                "week": f"on {WEEKDAYS[calendar.anchor - 1].title()}",
                "month": f"on day {calendar.anchor}",
            }[calendar.period]
            found += [
                ("calendar", f"each {calendar.period} begins {begins} in {calendar.tz}"),
                ("this one", f"{moment(start_us, calendar.tz)} to {moment(end_us, calendar.tz)}"),
            ]
        if self.cost > 1:
            found.append(("cost", f"{count(self.cost, 'unit')} for each hit"))
        found.append(("counted by", f"{limit.name}: {self.reason}"))
        return found

    def as_json(self) -> dict[str, Any]:
        """The same for machines: numbers, with their unit at the end of the name."""
        limit = self.limit
        calendar: dict[str, Any] | None = None
        if isinstance(limit, CalendarWindow):
            start_us, end_us = limit.bounds_us(self.now_us)
            tz = limit.calendar.tz
            calendar = {
                "period": limit.calendar.period,
                "tz": tz,
                "anchor": limit.calendar.anchor,
                "start": iso(start_us, tz),
                "end": iso(end_us, tz),
                "start_us": start_us,
                "end_us": end_us,
            }
        return {
            "rate": str(self.rate),
            "limit": self.rate.limit,
            "window_us": None if calendar else self.rate.window_us,
            "burst": self.rate.burst,
            "calendar": calendar,
            "algorithm": limit.name,
            "reason": self.reason,
            "facts": list(self.facts),
            "timeline": timeline_json(self.timeline),
        }


def explain(rate: Rate, algorithm: str | None, cost: int, now_us: int) -> Explanation:
    """Work out everything there is to say about one rate."""
    (limit,) = limits_of(rate, algorithm)
    facts = _facts(rate, limit, cost, now_us)
    plan = plan_start((limit,), cost, edges_of(limit, now_us))
    timeline = run(OneLimit(limit), plan)
    return Explanation(rate, limit, cost, now_us, _reason(rate, algorithm), facts, timeline)


def window_name(rate: Rate) -> str:
    """`minute`, `5 minutes`, `calendar month`."""
    return f"calendar {rate.calendar.period}" if rate.calendar else span_text(rate.window_us)


def a_window(rate: Rate) -> str:
    """`a minute`, `an hour`, `5 minutes`, `a calendar month`."""
    name = window_name(rate)
    if name[0].isdigit():
        return name
    return f"an {name}" if name == "hour" else f"a {name}"


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """A timeline for machines."""
    plan = timeline.plan
    return {
        "edges_us": [edge_us - plan.edges_us[0] for edge_us in plan.edges_us],
        "hits_per_column": plan.per_column,
        "cost": plan.cost,
        "admitted": list(timeline.admitted),
        "denied": list(timeline.denied),
    }


def _reason(rate: Rate, algorithm: str | None) -> str:
    if algorithm is not None:
        return "as asked with --algorithm"
    if rate.calendar is not None:
        return "the one for calendar rates"
    return "the default for a rate with a burst" if rate.burst else "the default without a burst"


def _facts(rate: Rate, limit: Limit, cost: int, now_us: int) -> tuple[str, ...]:
    if not limit.limit:
        return ("A limit of 0 admits nothing, ever. It closes a door without taking it out.",)
    at_once = limit.burst if isinstance(limit, TokenBucket) else limit.limit
    facts: list[str] = []
    if cost > at_once:
        facts.append(
            f"A hit of {cost:,} never fits: there are never more than {at_once:,} at once."
        )
    elif cost > 1:
        facts.append(
            f"{count(at_once, 'unit')} {'is' if at_once == 1 else 'are'} enough for "
            f"{count(at_once // cost, 'hit')} of {cost:,}"
            + (f", and {at_once % cost:,} left over." if at_once % cost else ".")
        )
    facts += FACTS[limit.name](rate, limit)
    if isinstance(limit, CalendarWindow):
        end_us = limit.bounds_us(now_us)[1]
        facts.append(
            f"The count starts from zero again on {moment(end_us, limit.calendar.tz)}, "
            f"in {about(end_us - now_us)}."
        )
    return tuple(facts)


def _token_bucket(rate: Rate, limit: Limit) -> list[str]:
    assert isinstance(limit, TokenBucket)
    every_us = Fraction(limit.window_us, limit.limit)
    return [
        f"One unit flows back every {_bare(about(every_us))}, for as long as somebody takes them.",
        f"A key that was idle gives {count(limit.burst, 'unit')} at once; an empty one is full "
        f"again after {about(every_us * limit.burst)}.",
        f"No span of {a_window(rate)} admits more than {limit.burst + limit.limit:,}: "
        "the burst and what flows back meanwhile.",
    ]


def _sliding_window(rate: Rate, limit: Limit) -> list[str]:
    window = window_name(rate)
    facts = [
        f"Counts the {_running(rate)} and fades out the one before it: two numbers per key, "
        "and close to exact for traffic that is spread out.",
        f"Worst case: just under twice the limit. A caller who saves all for the end of one window "
        f"can get {2 * limit.limit - 1:,} into a span of {a_window(rate)}.",
    ]
    if limit.limit == 1:
        facts.append(
            f"Hammered without a pause it admits only every other {_each(window)}, since one unit "
            "needs a whole window to fade. An even pace: --algorithm token_bucket."
        )
    elif limit.limit < FEW:
        facts.append(
            f"Hammered without a pause it settles at {limit.limit - 1} per {window}, one less than "
            "the limit, since only whole units are given. An even pace: --algorithm token_bucket."
        )
    return facts


def _sliding_log(rate: Rate, limit: Limit) -> list[str]:
    return [
        f"Exact: no span of {a_window(rate)}, wherever it begins, admits more than {limit.limit:,}.",
        f"Pays for it in memory: up to {count(limit.limit, 'entry').replace('entrys', 'entries')} "
        "per key, where the others keep a few numbers.",
        "After a rush nothing passes until the rush is a whole window old.",
    ]


def _fixed_window(rate: Rate, limit: Limit) -> list[str]:
    start = (
        "" if rate.calendar else ", on the clock (counted from 1970 in UTC), not from the first hit"
    )
    return [
        f"Each {_each(window_name(rate))} starts from zero{start}.",
        f"Up to twice the limit around a boundary: {limit.limit:,} just before it "
        f"and {limit.limit:,} just after.",
    ]


def _exponential_backoff(rate: Rate, limit: Limit) -> list[str]:
    assert isinstance(limit, ExponentialBackoff)
    limits = ", ".join(f"{limit.limit_at(level):,}" for level in range(limit.max_level + 1))
    longest_us = limit.retry_us << limit.max_level
    return [
        f"A fixed window that tightens: {limit.denials_per_level} denials in a row lower the limit "
        f"by a level, {limits}; at the last one nothing passes for a whole window.",
        f"A {'window'} of {_bare(a_window(rate))} without a denial forgives one level.",
        f"Asks callers to wait {duration(limit.retry_us)}, doubled with each level up to "
        f"{duration(longest_us)}; that is a pace, not a promise.",
    ]


def _adaptive(rate: Rate, limit: Limit) -> list[str]:
    return [
        "Three algorithms watch the same key, and live traffic chooses which of them decides: "
        "sliding_window, token_bucket or exponential_backoff. A switch never gives a fresh start.",
        "Without anything to choose by it is a sliding_window, and that is what the picture shows.",
        *_sliding_window(rate, limit)[1:],
    ]


FACTS: Final[dict[str, Callable[[Rate, Limit], list[str]]]] = {
    "token_bucket": _token_bucket,
    "sliding_window": _sliding_window,
    "sliding_log": _sliding_log,
    "fixed_window": _fixed_window,
    "exponential_backoff": _exponential_backoff,
    "adaptive": _adaptive,
}


def _running(rate: Rate) -> str:
    name = window_name(rate)
    return f"window of {name} that is running" if name[0].isdigit() else f"{name} that is running"


def _each(window: str) -> str:
    return f"window of {window}" if window[0].isdigit() else window


def _bare(text: str) -> str:
    """`about 5 s` reads badly after `every`; a single unit reads badly after `window of`."""
    return text
