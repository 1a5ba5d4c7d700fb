"""One rule, from fields whose shapes were checked: those that are wrong are `WRONG`, the others are looked at all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ..faults import WRONG
from ..fields import AMOUNT_NAMES, MATCH, RULE
from ..kinds import is_whole_text
from ..model import NOTHING, Cost, Exempt, Rule
from .amount import limits_from, limits_of_override
from .filling import plainly
from .identifier import PLAINLY, identifier_of
from .match import EVERYTHING, match_from, pattern_names
from .values import require_value
from .where import Where, attempt, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...algorithms import Limit
    from ..faults import At, Faults
    from ..model import Identifier

HOW_MUCH: Final = AMOUNT_NAMES | {"limits"}
UNSAID: Final = dict.fromkeys(HOW_MUCH, WRONG)
"""How much, of which nothing is known."""
UNKNOWN: Final = {"identifier": WRONG, **UNSAID}
"""Defaults that are no mapping: they may have said everything that a rule needs."""
ONE: Final = Cost()
NOBODY: Final = Exempt()


def build_rule(
    document: dict[str, Any], at: At, where: Where, faults: Faults, *, plain: bool = False
) -> Rule | None:
    """The rule that `document` describes, or `None` when something is wrong with it or with others of its file.

    `at` is the rule's place, and `where` says for each field whether it was written there or in the defaults. `plain` says
    that fields have their first names, and none is null.
    """
    written = document if plain else plainly(document)
    RULE.check_required(written, at, faults)
    match = (
        match_from(written["match"], where("match"), faults) if "match" in written else EVERYTHING
    )
    identifier = None
    if "identifier" in written:
        identifier = _identifier(written, where, faults)
    cost = _cost(written["cost"], where("cost"), faults) if "cost" in written else ONE
    limits = limits_from(written, where, faults)
    if cost is not ONE:
        _require_room(cost, limits, where("cost"), faults)
    overrides: Mapping[str, tuple[Limit, ...]] = NOTHING
    if "overrides" in written:
        overrides = _overrides(written, cost, limits, where("overrides"), faults)
    exempt = _exempt(written["exempt"], where("exempt"), faults) if "exempt" in written else NOBODY
    if identifier is not None and (overrides or exempt.values):
        _require_values(identifier, written, where, faults)
    if faults.count or identifier is None:
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
        shadow=written.get("shadow", False),
        enforce_percent=written.get("enforce_percent", 100),
        overrides=overrides,
        exempt=exempt,
        enabled=written.get("enabled", True),
        labels=written.get("labels", NOTHING),
        document=document,
    )


def _identifier(written: Mapping[str, Any], where: Where, faults: Faults) -> Identifier | None:
    said = written["identifier"]
    if said is WRONG:
        return None
    if type(said) is str and said in PLAINLY:
        return PLAINLY[said]  # The usual case, in front of the questions.
    sound = [part for part in said if part is not WRONG] if isinstance(said, list) else said
    names = _names(written, faults)
    identifier = attempt(where("identifier"), faults, identifier_of, sound, names)
    return identifier if sound == said else None


def _names(written: Mapping[str, Any], faults: Faults) -> frozenset[str] | None:
    """What the path pattern names; `None` if it is wrong, or may be there under a wrong name: then nobody knows."""
    match = written.get("match")
    pattern = match.get("path_pattern") if isinstance(match, dict) else match
    if pattern is WRONG:
        return None
    if pattern is None and faults.count:
        inside = match if isinstance(match, dict) else NOTHING
        if RULE.misspells(written, ("match",)) or MATCH.misspells(inside, ("path_pattern",)):
            return None
    try:
        return pattern_names(pattern)
    except UsageError:  # Noted where the pattern stands.
        return None


def _cost(written: int | dict[str, Any], at: At, faults: Faults) -> Cost:
    if isinstance(written, int):
        return Cost(default=written)
    if written is WRONG:
        return ONE
    names = {"default": "default", "min": "minimum", "max": "maximum", "header": "header"}
    said = {
        part: written[name]
        for name, part in names.items()
        if written.get(name) not in (None, WRONG)
    }
    if "header" in said:
        said["header"] = said["header"].lower()
    cost = Cost(**said)
    if cost.minimum > cost.maximum:
        message = f"the min {cost.minimum} is more than the max {cost.maximum}"
        faults.add(at, message, "raise the max")
    if cost.default > cost.maximum:
        message = f"the default {cost.default} is more than the max {cost.maximum}"
        faults.add(at, message, "raise the max")
    return cost


def _require_room(cost: Cost, limits: tuple[Limit, ...], at: At, faults: Faults) -> None:
    """A cost that no limit can ever hold denies everybody, and surely not on purpose; a limit of 0 does that plainly."""
    for limit in limits:
        room = getattr(limit, "burst", 0) or limit.limit
        if limit.limit and cost.default > room:
            message = f"a cost of {cost.default} never fits into {room}"
            faults.add(at, message, "lower the cost, or raise the limit or its burst")


def _overrides(
    written: Mapping[str, Any], cost: Cost, limits: tuple[Limit, ...], at: At, faults: Faults
) -> Mapping[str, tuple[Limit, ...]]:
    if written["overrides"] is WRONG:
        return NOTHING
    # What is wrong with the rule is not said again with each override.
    amount = {name: written[name] for name in HOW_MUCH if name in written} if limits else UNSAID
    overrides = {}
    for value, one in written["overrides"].items():
        overrides[value] = limits_of_override(one, amount, (at, value), faults)
        _require_room(cost, overrides[value], (at, value), faults)
    return overrides


def _require_values(
    identifier: Identifier, written: Mapping[str, Any], where: Where, faults: Faults
) -> None:
    """Refuse overrides and exemptions for values that no request has."""
    overrides = written.get("overrides", NOTHING)
    for value, one in () if overrides is WRONG else overrides.items():
        if one is not WRONG or is_whole_text(value):
            attempt((where("overrides"), value), faults, require_value, identifier, value)
    exempt, at = written.get("exempt", ()), where("exempt")
    if isinstance(exempt, dict):
        exempt, at = exempt.get("values") or (), (at, "values")
    for i, value in numbered(exempt):
        attempt((at, i), faults, require_value, identifier, value)


def _exempt(written: list[str] | dict[str, Any], at: At, faults: Faults) -> Exempt:
    if isinstance(written, list):
        return Exempt(values=frozenset(written))
    if written is WRONG:
        return NOBODY
    matches, at = written.get("match"), (at, "match")
    if isinstance(matches, dict):
        made = [match_from(matches, at, faults)]
        asks_nothing = not any(matches.values())
    else:
        listed = numbered(matches or ())
        made = [match_from(one, (at, i), faults) for i, one in listed]
        asks_nothing = any(not any(one.values()) for _, one in listed)
    if asks_nothing:
        faults.add(at, "describes every request, so the rule would do nothing", "say which ones")
    values = frozenset(value for _, value in numbered(written.get("values") or ()))
    return Exempt(values=values, matches=tuple(made))
