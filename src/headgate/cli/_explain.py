"""What a rate means, in plain words: how it was parsed, how it is counted, and what that implies.

One function per algorithm lists the facts that matter when choosing it. The numbers are guarantees of the algorithm
(its module docstring proves them), not results of a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import CalendarWindow, ExponentialBackoff, Limit, TokenBucket
from ..algorithms.calendar import WEEKDAYS
from ..rate import Rate, limits_of, span_text
from ._formatting import approximate_duration, count, duration, iso, moment
from ._simulation import COLUMNS, QUIET, OneLimit, Timeline, edges_of, plan_start, run

if TYPE_CHECKING:
    from collections.abc import Callable

FEW: Final = 20
"""Below this many units a window, it shows that units are whole."""


@dataclass(frozen=True, slots=True)
class RateExplanation:
    """One rate, as text and JSON output show it."""

    rate: Rate
    limit: Limit
    cost: int
    now_us: int
    reason: str
    facts: tuple[str, ...]
    timeline: Timeline

    @property
    def headings(self) -> list[tuple[str, str]]:
        """The parsed rate, as names and values."""
        rate, limit = self.rate, self.limit
        found = [("limit", f"{count(rate.limit, 'unit')} per {window_name(rate)}")]
        if isinstance(limit, TokenBucket) and limit.limit:
            given = "" if rate.burst else " (the limit, as no burst was given)"
            found.append(("burst", f"{count(limit.burst, 'unit')} at once{given}"))
        elif rate.burst is not None:
            found.append(("burst", f"{count(rate.burst, 'unit')} at once"))
        if isinstance(limit, CalendarWindow):
            calendar = limit.calendar
            start_us, end_us = limit.bounds_us(self.now_us)
            begins = "at midnight" if calendar.period == "day" else f"on day {calendar.anchor}"
            if calendar.period == "week":
                begins = f"on {WEEKDAYS[calendar.anchor - 1].title()}"
            period = f"{moment(start_us, calendar.tz)} to {moment(end_us, calendar.tz)}"
            found += [
                ("calendar", f"each {calendar.period} begins {begins} in {calendar.tz}"),
                (f"this {calendar.period}", period),
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
            "guarantee": limit.guarantee,
            "facts": list(self.facts),
            "timeline": timeline_json(self.timeline),
        }


def explain(rate: Rate, algorithm: str | None, cost: int, now_us: int) -> RateExplanation:
    """Explain one rate."""
    (limit,) = limits_of(rate, algorithm)
    facts = _facts(rate, limit, cost, now_us)
    plan = plan_start((limit,), cost, edges_of(limit, now_us))
    timeline = run(OneLimit(limit), plan)
    return RateExplanation(rate, limit, cost, now_us, _reason(rate, algorithm), facts, timeline)


def window_name(rate: Rate) -> str:
    """`minute`, `5 minutes`, `calendar month`."""
    if rate.calendar is not None:
        return f"calendar {rate.calendar.period}"
    name = span_text(rate.window_us)
    return "millisecond" if name == "ms" else name


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
        "edges_us": list(plan.edges_us),
        "columns_per_window": COLUMNS,
        "quiet_columns": QUIET,
        "hits_per_column": plan.per_column,
        "hits_per_batch": plan.batch,
        "cost": plan.cost,
        "admitted": list(timeline.admitted),
        "denied": list(timeline.denied),
    }


def _reason(rate: Rate, algorithm: str | None) -> str:
    if algorithm is not None:
        return "chosen with --algorithm"
    if rate.calendar is not None:
        return "the default for calendar rates"
    return "the default for a rate with a burst" if rate.burst else "the default without a burst"


def _facts(rate: Rate, limit: Limit, cost: int, now_us: int) -> tuple[str, ...]:
    if not limit.limit:
        return ("A limit of 0 admits nothing, ever.",)
    at_once = limit.burst if isinstance(limit, TokenBucket) else limit.limit
    facts = [f"Guarantees {limit.guarantee}."]
    if cost > at_once:
        facts.append(
            f"A hit of {cost:,} can never pass: there are never more than {at_once:,} units at once."
        )
    elif cost > 1:
        facts.append(
            f"{count(at_once, 'unit')} {'is' if at_once == 1 else 'are'} enough for "
            f"{count(at_once // cost, 'hit')} of {cost:,}"
            + (f", and {at_once % cost:,} left over." if at_once % cost else ".")
        )
    facts += FACTS[limit.name](rate, limit, cost)
    if isinstance(limit, CalendarWindow):
        end_us = limit.bounds_us(now_us)[1]
        facts.append(
            f"The count restarts from zero on {moment(end_us, limit.calendar.tz)}, "
            f"in {approximate_duration(end_us - now_us)}."
        )
    return tuple(facts)


def _token_bucket(rate: Rate, limit: Limit, _cost: int) -> list[str]:
    assert isinstance(limit, TokenBucket)
    every_us = Fraction(limit.window_us, limit.limit)
    return [
        f"One unit refills every {approximate_duration(every_us)} until the bucket is full.",
        (
            f"An idle key allows {count(limit.burst, 'unit')} at once; an empty bucket is full "
            f"again after {approximate_duration(every_us * limit.burst)}."
        ),
        (
            f"No span of {a_window(rate)} admits more than {limit.burst + limit.limit:,}: "
            "the burst plus what refills meanwhile."
        ),
    ]


def _sliding_window(rate: Rate, limit: Limit, cost: int) -> list[str]:
    window = window_name(rate)
    counts = (
        f"Counts the current {_each(window)} and fades out the previous one: two numbers "
        "per key, and close to exact for evenly spread traffic."
    )
    if limit.limit == cost == 1:
        return [
            counts,
            (
                f"Under constant hammering it admits one every other {_each(window)}, because a unit "
                "needs a whole window to fade. For an even pace: --algorithm token_bucket."
            ),
        ]
    worst = (
        "Worst case: just under twice the limit. A caller that waits for the end of one window "
        f"gets up to {2 * limit.limit - 1:,} within {a_window(rate)}."
    )
    if limit.limit >= FEW or cost > 1:
        return [counts, worst]
    return [
        counts,
        worst,
        (
            f"Under constant hammering it settles at {limit.limit - 1} per {window}, one less than "
            "the limit, because only whole units pass. For an even pace: --algorithm token_bucket."
        ),
    ]


def _sliding_log(rate: Rate, limit: Limit, _cost: int) -> list[str]:
    return [
        f"Exact: no span of {a_window(rate)}, wherever it begins, admits more than {limit.limit:,}.",
        (
            f"Costs memory: every admitted hit is stored for {a_window(rate)}, up to "
            f"{limit.limit:,} per key, while the others store a few numbers."
        ),
        "After a burst that used the whole limit, nothing passes until its first hits are a window old.",
    ]


def _fixed_window(rate: Rate, limit: Limit, _cost: int) -> list[str]:
    start = (
        "" if rate.calendar else ", aligned to the clock (from 1970 in UTC), not to the first hit"
    )
    return [
        f"Each {_each(window_name(rate))} starts from zero{start}.",
        (
            f"Up to twice the limit around a boundary: {limit.limit:,} just before it "
            f"and {limit.limit:,} just after."
        ),
    ]


def _exponential_backoff(rate: Rate, limit: Limit, _cost: int) -> list[str]:
    assert isinstance(limit, ExponentialBackoff)
    limits = ", ".join(f"{limit.limit_at(level):,}" for level in range(limit.max_level + 1))
    longest_us = limit.retry_us << limit.max_level
    return [
        (
            f"A fixed window that tightens: every {limit.denials_per_level} denials in a row lower the limit "
            f"({limits}); at the last level nothing passes for a whole window."
        ),
        f"A whole {_each(window_name(rate))} without a denial raises it by one level.",
        (
            f"retry_after is {duration(limit.retry_us)}, doubled with each level up to "
            f"{duration(longest_us)}; it is a pace, not a promise that a retry passes."
        ),
    ]


def _adaptive(_rate: Rate, _limit: Limit, _cost: int) -> list[str]:
    return [
        (
            "Three algorithms count the same key, and one of them decides: sliding_window, token_bucket "
            "or exponential_backoff."
        ),
        ("It is a sliding_window until the traffic calls for another one; the chart shows that."),
    ]


FACTS: Final[dict[str, Callable[[Rate, Limit, int], list[str]]]] = {
    "token_bucket": _token_bucket,
    "sliding_window": _sliding_window,
    "sliding_log": _sliding_log,
    "fixed_window": _fixed_window,
    "exponential_backoff": _exponential_backoff,
    "adaptive": _adaptive,
}


def _each(window: str) -> str:
    return f"window of {window}" if window[0].isdigit() else window
