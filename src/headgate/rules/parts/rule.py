"""One rule, from fields whose shapes were checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ..fields import AMOUNT_NAMES, RULE
from ..model import NOTHING, Cost, Exempt, Rule
from .amount import limits_from, limits_of_override
from .filling import plainly
from .identifier import identifier_of
from .match import EVERYTHING, match_from, pattern_names
from .values import require_value
from .where import Where, attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...algorithms import Limit
    from ..faults import At, Faults
    from ..model import Identifier, Match

HOW_MUCH: Final = AMOUNT_NAMES | {"limits"}
ONE: Final = Cost()
NOBODY: Final = Exempt()


def build_rule(
    document: dict[str, Any],
    at: At,
    where: Where,
    faults: Faults,
    *,
    bad: frozenset[str] = frozenset(),
) -> Rule | None:
    """The rule that `document` describes, or `None` when something is wrong with it.

    `at` is the rule's place, and `where` says for each field whether it was written there or in the defaults. Fields in
    `bad` were found to be wrong already; the others are looked at all the same.
    """
    before = faults.count
    written = plainly(document)
    RULE.check_required(written, at, faults)
    for name in bad:
        written.pop(name, None)
    match = (
        match_from(written["match"], where("match"), faults) if "match" in written else EVERYTHING
    )
    identifier = limits = None
    if "identifier" in written and "match" not in bad:
        identifier = _identifier(written, match, where, faults)
    cost = _cost(written["cost"], where("cost"), faults) if "cost" in written else ONE
    overrides: Mapping[str, tuple[Limit, ...]] = NOTHING
    if not bad & HOW_MUCH:
        limits = limits_from(written, where, faults)
        if cost is not ONE:
            _require_room(cost, limits, where("cost"), faults)
        if "overrides" in written:
            overrides = _overrides(written, cost, where("overrides"), faults)
    exempt = _exempt(written["exempt"], where("exempt"), faults) if "exempt" in written else NOBODY
    if identifier is not None and (overrides or exempt.values):
        _require_values(identifier, written, where, faults)
    if bad or faults.count > before or identifier is None or limits is None:
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


def _identifier(
    written: Mapping[str, Any], match: Match, where: Where, faults: Faults
) -> Identifier | None:
    try:
        names = pattern_names(match.path_pattern)
    except UsageError:  # Noted where the pattern stands; what it would have named is unknown.
        return None
    return attempt(where("identifier"), faults, identifier_of, written["identifier"], names)


def _cost(written: int | dict[str, Any], at: At, faults: Faults) -> Cost:
    if isinstance(written, int):
        return Cost(default=written)
    names = {"default": "default", "min": "minimum", "max": "maximum"}
    said = {names[name]: written[name] for name in names if written.get(name) is not None}
    cost = Cost(header=written["header"].lower(), **said)
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
    written: Mapping[str, Any], cost: Cost, at: At, faults: Faults
) -> Mapping[str, tuple[Limit, ...]]:
    amount = {name: written[name] for name in HOW_MUCH if name in written}
    overrides = {}
    for value, one in written["overrides"].items():
        overrides[value] = limits_of_override(one, amount, (at, value), faults)
        _require_room(cost, overrides[value], (at, value), faults)
    return overrides


def _require_values(
    identifier: Identifier, written: Mapping[str, Any], where: Where, faults: Faults
) -> None:
    """Refuse overrides and exemptions for values that no request has."""
    for value in written.get("overrides", ()):
        attempt((where("overrides"), value), faults, require_value, identifier, value)
    exempt, at = written.get("exempt", ()), where("exempt")
    if isinstance(exempt, dict):
        exempt, at = exempt.get("values") or (), (at, "values")
    for i, value in enumerate(exempt):
        attempt((at, i), faults, require_value, identifier, value)


def _exempt(written: list[str] | dict[str, Any], at: At, faults: Faults) -> Exempt:
    if isinstance(written, list):
        return Exempt(values=frozenset(written))
    matches = written.get("match")
    at = (at, "match")
    if isinstance(matches, dict):
        made = [match_from(matches, at, faults)]
    else:
        made = [match_from(one, (at, i), faults) for i, one in enumerate(matches or ())]
    if EVERYTHING in made:
        faults.add(at, "describes every request, so the rule would do nothing", "say which ones")
    return Exempt(values=frozenset(written.get("values") or ()), matches=tuple(made))
