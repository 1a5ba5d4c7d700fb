"""Limits: `rate`, `limit` or `limits`, and what they mean."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ....algorithms import Calendar, Limit
from ....errors import UsageError
from ....rate import Rate, limits_of
from ..error_collector import INVALID
from ..fields import ALGORITHMS, RULE
from .defaults import CONFLICTS, with_defaults
from .locations import Where, add_usage_error, attempt, inside, valid_items

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..error_collector import At, ErrorCollector

FORMS: Final = ("rate", "limits", "limit")
CLASHING: Final = {**CONFLICTS, "rate": CONFLICTS["rate"] - {"burst"}}
"""Fields that must not be written next to a form. A burst may be, next to a rate, but is not inherited."""
NO_LIMITS: Final[tuple[Limit, ...]] = ()


def limits_from(
    amount: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> tuple[Limit, ...]:
    """The limits that these fields describe; empty if something is wrong with them."""
    form = _form(amount, where, errors)
    if form is None:
        return NO_LIMITS
    if errors.count and INVALID in amount.values():
        _check_rest(form, amount, where, errors)
        return NO_LIMITS
    limits = _MAKERS[form](amount, where, errors)
    if len(limits) > 1 and len({limit.identity for limit in limits}) < len(limits):
        message = "two limits have the same algorithm and window"
        errors.add(where(form), message, "keep the tighter of the two")
        return NO_LIMITS
    return limits


def limits_of_override(
    written: Any, amount: Mapping[str, Any], at: At, errors: ErrorCollector
) -> tuple[Limit, ...]:
    """The limits of one override of a rule with `amount`."""
    if written is INVALID:
        return NO_LIMITS
    if isinstance(written, dict):
        return limits_from(with_defaults(written, amount), lambda name: (at, name), errors)
    own = {"rate": written} if isinstance(written, str) else {"limits": written}
    return limits_from(
        with_defaults(own, amount), lambda name: at if name in own else (at, name), errors
    )


def _form(amount: Mapping[str, Any], where: Where, errors: ErrorCollector) -> str | None:
    """Which of the three forms is used; there must be exactly one, without fields of another."""
    for form in FORMS:
        if amount.get(form) is not None:
            break
    else:
        if not RULE.misspells(amount, FORMS):
            remedy = "write a `rate` such as 100/minute, or `limit` and `window_size_seconds`"
            errors.add(where("rate"), "has no limit", remedy)
        return None
    if CLASHING[form].isdisjoint(amount):
        return form
    extra = [name for name in CLASHING[form].intersection(amount) if amount[name] is not None]
    if amount[form] is INVALID:
        extra = [name for name in extra if amount[name] is not INVALID]
    if extra:
        message = f"`{min(extra)}` cannot be combined with `{form}`"
        errors.add(where(min(extra)), message, "keep one of the two")
        return None
    return form


def _check_rest(form: str, amount: Mapping[str, Any], where: Where, errors: ErrorCollector) -> None:
    """Check the remaining fields, after an error in one of them."""
    valid = {name: value for name, value in amount.items() if value is not INVALID}
    if form == "limit" and not (
        "limit" in valid and {"calendar", "window_size_seconds"} & {*valid}
    ):
        valid = {"limit": 1, "calendar": valid.get("calendar")}  # Other fields do not apply.
        if valid["calendar"] is None:
            return
    if form in valid:
        _MAKERS[form](valid, where, errors)


def _from_rate(
    amount: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> tuple[Limit, ...]:
    text, burst = amount["rate"], amount.get("burst")
    if burst is None:
        try:
            return limits_of(text, _algorithm(amount))
        except UsageError as error:
            add_usage_error(error, where("rate"), errors)
            return NO_LIMITS
    rates = attempt(where("rate"), errors, Rate.parse_all, text)
    if rates is None:
        return NO_LIMITS
    if len(rates) > 1 or rates[0].burst is not None:
        message = f"`burst` is ambiguous with the rate {text!r}"
        errors.add(where("burst"), message, "write it in the rate, such as '100/minute burst 20'")
        return NO_LIMITS
    (rate,) = rates

    def make() -> tuple[Limit, ...]:
        window = None if rate.calendar else timedelta(microseconds=rate.window_us)
        return limits_of(
            Rate(rate.limit, window, burst, calendar=rate.calendar), _algorithm(amount)
        )

    return attempt(where("burst"), errors, make) or NO_LIMITS


def _from_limit(
    amount: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> tuple[Limit, ...]:
    written, window = amount.get("calendar"), amount.get("window_size_seconds")
    if written is None and window is None:
        if not RULE.misspells(amount, ("window_size_seconds", "calendar")):
            remedy = "write `window_size_seconds`, or `calendar`"
            errors.add(where("limit"), "has no window", remedy)
        return NO_LIMITS
    if written is not None and window is not None:
        message = "`calendar` and `window_size_seconds` both set the window"
        errors.add(where("calendar"), message, "keep one of them")
        return NO_LIMITS
    calendar = None
    if written is not None:
        calendar = attempt(where("calendar"), errors, _calendar, written)
        if calendar is None or (isinstance(written, dict) and INVALID in written.values()):
            return NO_LIMITS
    numbers = (amount["limit"], window, amount.get("burst"), calendar, _algorithm(amount))
    return attempt(where("limit"), errors, _plain_limits, *numbers) or NO_LIMITS


@lru_cache(maxsize=16_384)
def _plain_limits(
    limit: int,
    window: float | None,
    burst: int | None,
    calendar: Calendar | None,
    algorithm: str | None,
) -> tuple[Limit, ...]:
    return limits_of(Rate(limit, window, burst, calendar=calendar), algorithm)


def _from_list(
    amount: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> tuple[Limit, ...]:
    """Each item on its own, with the rule's settings where it has none."""
    at = where("limits")
    common = {} if amount.get("algorithm") is None else {"algorithm": amount["algorithm"]}
    made = [
        limits_from({"rate": item, **common}, _always((at, i)), errors)
        if isinstance(item, str)
        else limits_from({**common, **item}, inside((at, i)), errors)
        for i, item in valid_items(amount["limits"])
    ]
    complete = all(made) and len(made) == len(amount["limits"])
    return tuple(limit for limits in made for limit in limits) if complete else NO_LIMITS


def _always(at: At) -> Where:
    return lambda _: at


def _calendar(written: str | dict[str, Any]) -> Calendar:
    if isinstance(written, str):
        return Calendar(written)
    given = {name: value for name, value in written.items() if value is not INVALID}
    zone = given.get("time_zone") or "UTC"
    if "period" not in given:
        return Calendar("month", zone)
    return Calendar(given["period"], zone, given.get("anchor") or 1)


def _algorithm(amount: Mapping[str, Any]) -> str | None:
    name = amount.get("algorithm")
    return None if name is None else ALGORITHMS.also.get(name, name)


_MAKERS: Final[
    dict[str, Callable[[Mapping[str, Any], Where, ErrorCollector], tuple[Limit, ...]]]
] = {
    "rate": _from_rate,
    "limit": _from_limit,
    "limits": _from_list,
}
