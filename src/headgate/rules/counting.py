"""What a rule that matches makes of a request: a charge, or nothing.

Here are whom it is counted for, what it costs, which limits hold for that one, and whether the answer counts. A rule
leaves a request alone when it is exempt, or when the identifier is missing and the rule says to skip such requests.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..algorithms import FixedWindow
from ..charge import MAX_STEPS, Charge, Kind, ReadyCharge
from .conditions import why_not
from .identify import MAX_PLAIN, Identify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .facts import Facts
    from .identify import Identity
    from .model import Cost, Rule

DENY: Final = (FixedWindow(0, 60_000_000),)
"""What holds for a request that must not pass without an identifier: nothing fits into it, ever."""


class Counting:
    """How one rule counts, made ready."""

    __slots__ = (
        *("_cost", "_exempts", "_kind", "_limits", "_plain", "_rule_id", "_values"),
        *("identify", "rule", "stop"),
    )

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.identify = Identify(rule)
        self.stop = rule.stop
        self._rule_id = rule.rule_id
        self._limits = rule.limits
        self._cost = rule.cost.default
        self._exempts = rule.exempt.matches
        self._values = bool(rule.overrides or rule.exempt.values)
        self._kind = Kind.SHADOW if rule.shadow else Kind.TAKE
        asks_more = (
            self._exempts
            or self._values
            or rule.cost.header is not None
            or rule.enforce_percent < 100
        )
        self._plain = None if asks_more else self.identify.plain

    def charge(self, facts: Facts) -> Charge | None:
        """What a request that matches is charged; nothing if the rule leaves it alone."""
        read = self._plain
        if read is not None and facts.cost is None:  # The usual case, in front of the questions.
            key = read(facts)
            if key and key[0] != "~" and len(key) <= MAX_PLAIN and key.isascii():
                return ReadyCharge(key, self._limits, self._cost, self._kind, self._rule_id)
        return self._charge(facts)

    def _charge(self, facts: Facts) -> Charge | None:
        rule = self.rule
        identity = self.identify(facts)
        if (self._exempts or self._values) and self.why_exempt(facts, identity) is not None:
            return None
        key, value, missing = identity
        cost = facts.cost
        if cost is None:
            cost = cost_of(rule.cost, facts)[0]
        limits = rule.limits
        if missing:
            if rule.on_missing == "skip":
                return None
            if rule.on_missing == "deny":
                limits, cost = DENY, cost or 1
        elif self._values:
            limits = rule.overrides.get(value or "", limits)
        kind = self._kind
        if rule.enforce_percent < 100 and not is_enforced(rule, key):
            kind = Kind.SHADOW
        return ReadyCharge(key, limits, cost, kind, rule.rule_id)

    def why_exempt(self, facts: Facts, identity: Identity) -> str | None:
        """Why the rule leaves this request alone, in words; `None` if it does not."""
        exempt = self.rule.exempt
        if identity.value is not None and identity.value in exempt.values:
            return f"{identity.value!r} is exempt"
        for at, match in enumerate(exempt.matches):
            if why_not(match, facts) is None:
                return f"it fits exempt.match[{at}]"
        return None


def fitting(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """What of these charges is asked in one go.

    Those that are enforced come first, and shadows have the room that is left. If not even the former fit, the first that
    has no place denies the request for all of them, and nothing is counted.
    """
    room = MAX_STEPS
    for charge in charges:
        if charge.kind is Kind.TAKE:
            room -= len(charge.limits)
            if room < 0:
                cost = charge.cost or 1
                return (ReadyCharge(charge.key, DENY, cost, Kind.TAKE, charge.rule),)
    kept = []
    for charge in charges:
        if charge.kind is not Kind.TAKE:
            if len(charge.limits) > room:
                continue
            room -= len(charge.limits)
        kept.append(charge)
    return tuple(kept)


def cost_of(cost: Cost, facts: Facts) -> tuple[int, str]:
    """What one request costs by itself, and what had to be said about its header.

    A header that is missing, or no whole number, or 0, is no reason to let a request pass for free, nor to refuse it.
    """
    if cost.header is None:
        return cost.default, ""
    text = facts.headers.get(cost.header)
    if text is None:
        return cost.default, f"there is no header {cost.header}, so it costs {cost.default}"
    if not (text.isascii() and text.isdigit()):
        return (
            cost.default,
            f"the header {cost.header} is no whole number, so it costs {cost.default}",
        )
    asked = int(text) if len(text) <= 16 else cost.maximum + 1
    if asked > cost.maximum:
        return cost.maximum, f"the header {cost.header} asks for more than {cost.maximum}"
    if asked < cost.minimum:
        return cost.minimum, f"the header {cost.header} asks for less than {cost.minimum}"
    return asked, ""


def bucket_of(rule: Rule, key: str) -> int:
    """Where a key stands between 0 and 99, for this rule and for ever.

    A key is enforced when it stands below the percentage, so raising that only ever adds keys.
    """
    digest = blake2b(
        f"{rule.rule_id}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
    return int.from_bytes(digest, "big") % 100


def is_enforced(rule: Rule, key: str) -> bool:
    """Whether this key is among those that the rule is enforced for."""
    return bucket_of(rule, key) < rule.enforce_percent
