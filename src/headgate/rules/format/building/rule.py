"""Builds one rule from checked fields. Fields that failed the check are `INVALID`; the others are still checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ....errors import UsageError
from ...model import NOTHING, Cost, Exempt, Rule
from ..error_collector import INVALID
from ..field_types import is_whole_text
from ..fields import AMOUNT_NAMES, RULE
from ..match_fields import MATCH
from .defaults import with_canonical_names
from .identifier import SIMPLE_IDENTIFIERS, identifier_of
from .limits import limits_from, limits_of_override
from .locations import Where, add_usage_error, attempt, valid_items
from .match import MATCH_ALL, match_from, pattern_names
from .values import require_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ....algorithms import Limit
    from ...model import Identifier
    from ..error_collector import At, ErrorCollector

LIMIT_FIELDS: Final = AMOUNT_NAMES | {"limits"}
INVALID_LIMITS: Final = dict.fromkeys(LIMIT_FIELDS, INVALID)
"""Stands for limits of which nothing is known."""
INVALID_DEFAULTS: Final = {"identifier": INVALID, **INVALID_LIMITS}
"""Stands for defaults that are not a mapping: they may have been meant to contain everything a rule needs."""
DEFAULT_COST: Final = Cost()
NO_EXEMPTIONS: Final = Exempt()


def build_rule(
    document: dict[str, Any], at: At, where: Where, errors: ErrorCollector
) -> Rule | None:
    """The rule that `document` describes, or `None` if there is an error in it or elsewhere in its file.

    `at` is the rule's place, and `where` tells for each field whether it was written there or in the defaults.
    """
    written = with_canonical_names(document)
    RULE.check_required(written, at, errors)
    match = (
        match_from(written["match"], where("match"), errors) if "match" in written else MATCH_ALL
    )
    identifier = None
    if "identifier" in written:
        identifier = _identifier(written, where, errors)
    cost = _cost(written["cost"], where("cost"), errors) if "cost" in written else DEFAULT_COST
    limits = limits_from(written, where, errors)
    if cost is not DEFAULT_COST:
        _require_room(cost, limits, where("cost"), errors)
    overrides: Mapping[str, tuple[Limit, ...]] = NOTHING
    if "overrides" in written:
        overrides = _overrides(written, cost, limits, where("overrides"), errors)
    consistency = written.get("consistency", "exact")
    if consistency not in ("exact", INVALID):
        limits = _agreed(limits, consistency, where("consistency"), errors)
        overrides = {
            value: _agreed(own, consistency, (where("overrides"), value), errors)
            for value, own in overrides.items()
        }
    exempt = (
        _exempt(written["exempt"], where("exempt"), errors)
        if "exempt" in written
        else NO_EXEMPTIONS
    )
    if identifier is not None and (overrides or exempt.values):
        _require_values(identifier, written, where, errors)
    if errors.count or identifier is None:
        return None
    return Rule(
        rule_id=written["rule_id"],
        identifier=identifier,
        limits=limits,
        match=match,
        description=written.get("description", ""),
        priority=written.get("priority", 100),
        stop=written.get("stop", False),
        cost=cost,
        on_missing=written.get("on_missing", "ip_address"),
        on_error=written.get("on_error"),
        consistency=consistency,
        when_cut_off=written.get("when_cut_off", "limit"),
        shadow=written.get("shadow", False),
        enforce_percent=written.get("enforce_percent", 100),
        overrides=overrides,
        exempt=exempt,
        enabled=written.get("enabled", True),
        labels=written.get("labels", NOTHING),
        document=document,
    )


def _identifier(
    written: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> Identifier | None:
    given = written["identifier"]
    if given is INVALID:
        return None
    if type(given) is str and given in SIMPLE_IDENTIFIERS:
        return SIMPLE_IDENTIFIERS[given]  # The usual case, without further checks.
    valid = [part for part in given if part is not INVALID] if isinstance(given, list) else given
    names = _names(written, errors)
    identifier = attempt(where("identifier"), errors, identifier_of, valid, names)
    return identifier if valid == given else None


def _names(written: Mapping[str, Any], errors: ErrorCollector) -> frozenset[str] | None:
    """The names in the path pattern; `None` if it is invalid, or may be present under a misspelled name."""
    match = written.get("match")
    pattern = match.get("path_pattern") if isinstance(match, dict) else match
    if pattern is INVALID:
        return None
    if pattern is None and errors.count:
        inside = match if isinstance(match, dict) else NOTHING
        if RULE.misspells(written, ("match",)) or MATCH.misspells(inside, ("path_pattern",)):
            return None
    try:
        return pattern_names(pattern)
    except UsageError:  # Reported with the pattern itself.
        return None


def _cost(written: int | dict[str, Any], at: At, errors: ErrorCollector) -> Cost:
    if isinstance(written, int):
        return Cost(default=written)
    if written is INVALID:
        return DEFAULT_COST
    names = {"default": "default", "min": "minimum", "max": "maximum", "header": "header"}
    given = {
        part: written[name]
        for name, part in names.items()
        if written.get(name) not in (None, INVALID)
    }
    if "header" in given:
        given["header"] = given["header"].lower()
    cost = Cost(**given)
    if cost.minimum > cost.maximum:
        message = f"the min {cost.minimum} is more than the max {cost.maximum}"
        errors.add(at, message, "raise the max")
    if cost.default > cost.maximum:
        message = f"the default {cost.default} is more than the max {cost.maximum}"
        errors.add(at, message, "raise the max")
    return cost


def _require_room(cost: Cost, limits: tuple[Limit, ...], at: At, errors: ErrorCollector) -> None:
    """Refuse a cost above the limit: it would deny every request. A limit of 0 is the explicit way to do that."""
    for limit in limits:
        room = getattr(limit, "burst", 0) or limit.limit
        if limit.limit and cost.default > room:
            message = f"a cost of {cost.default} never fits into {room}"
            errors.add(at, message, "lower the cost, or raise the limit or its burst")


def _overrides(
    written: Mapping[str, Any],
    cost: Cost,
    limits: tuple[Limit, ...],
    at: At,
    errors: ErrorCollector,
) -> Mapping[str, tuple[Limit, ...]]:
    if written["overrides"] is INVALID:
        return NOTHING
    # An error in the rule is not repeated for each override.
    amount = (
        {name: written[name] for name in LIMIT_FIELDS if name in written}
        if limits
        else INVALID_LIMITS
    )
    overrides = {}
    for value, one in written["overrides"].items():
        overrides[value] = limits_of_override(one, amount, (at, value), errors)
        _require_room(cost, overrides[value], (at, value), errors)
    return overrides


def _agreed(
    limits: tuple[Limit, ...], consistency: str, at: At, errors: ErrorCollector
) -> tuple[Limit, ...]:
    """The limits with leases or regional consistency applied; an error if they do not support it."""
    leased = consistency == "leased"
    if leased and len(limits) > 1:
        message = "several limits cannot be leased together"
        errors.add(at, message, "choose exact, or leave one of them")
        return ()
    try:
        return tuple(
            limit.as_leased() if leased else limit.across_regions(consistency) for limit in limits
        )
    except UsageError as error:
        add_usage_error(error, at, errors)
        return ()


def _require_values(
    identifier: Identifier, written: Mapping[str, Any], where: Where, errors: ErrorCollector
) -> None:
    """Refuse overrides and exemptions for values that no request can have."""
    overrides = written.get("overrides", NOTHING)
    for value, one in () if overrides is INVALID else overrides.items():
        if one is not INVALID or is_whole_text(value):
            attempt((where("overrides"), value), errors, require_value, identifier, value)
    exempt, at = written.get("exempt", ()), where("exempt")
    if isinstance(exempt, dict):
        exempt, at = exempt.get("values") or (), (at, "values")
    for i, value in valid_items(exempt):
        attempt((at, i), errors, require_value, identifier, value)


def _exempt(written: list[str] | dict[str, Any], at: At, errors: ErrorCollector) -> Exempt:
    if isinstance(written, list):
        return Exempt(values=frozenset(written))
    if written is INVALID:
        return NO_EXEMPTIONS
    matches, at = written.get("match"), (at, "match")
    if isinstance(matches, dict):
        made = [match_from(matches, at, errors)]
        asks_nothing = not any(matches.values())
    else:
        listed = valid_items(matches or ())
        made = [match_from(one, (at, i), errors) for i, one in listed]
        asks_nothing = any(not any(one.values()) for _, one in listed)
    if asks_nothing:
        errors.add(at, "matches every request, so the rule would do nothing", "add conditions")
    values = frozenset(value for _, value in valid_items(written.get("values") or ()))
    return Exempt(values=values, matches=tuple(made))
