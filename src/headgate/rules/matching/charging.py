"""From a matching rule to a charge, or to nothing.

The charge has the key that the request is counted under, its cost, the limits for that key, and whether the rule is
enforced. A rule does not apply to exempt requests, nor to those without the identifier if `on_missing` is `skip`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ...algorithms import FixedWindow
from ...charge import MAX_STEPS, Charge, ReadyCharge
from ...charge_kind import ChargeKind
from .conditions import why_not
from .identity import MAX_PLAIN, KeyReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import Cost, Rule
    from .identity import IdentifiedKey
    from .normalized_request import NormalizedRequest

TOO_MANY: Final = f"one request may have at most {MAX_STEPS} limits"
DENY: Final = (FixedWindow(0, 60_000_000),)
"""A limit of 0, for requests that must not pass without an identifier."""


class ChargeBuilder:
    """Makes the charges of one rule."""

    __slots__ = (
        *("_cost", "_exempts", "_kind", "_limits", "_plain", "_rule_id", "_values"),
        *("identify", "rule", "stop"),
    )

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.identify = KeyReader(rule)
        self.stop = rule.stop
        self._rule_id = rule.rule_id
        self._limits = rule.limits
        self._cost = rule.cost.default
        self._exempts = rule.exempt.matches
        self._values = bool(rule.overrides or rule.exempt.values)
        self._kind = ChargeKind.SHADOW if rule.shadow else ChargeKind.TAKE
        asks_more = (
            self._exempts
            or self._values
            or rule.cost.header is not None
            or rule.enforce_percent < 100
        )
        self._plain = None if asks_more else self.identify.plain

    def charge(self, request: NormalizedRequest) -> Charge | None:
        """The charge of a request that matches; `None` if the rule does not apply to it."""
        read = self._plain
        if read is not None and request.cost is None:  # The usual case, in front of the questions.
            key = read(request)
            if key and key[0] != "~" and len(key) <= MAX_PLAIN and key.isascii():
                return ReadyCharge(key, self._limits, self._cost, self._kind, self._rule_id)
        return self._charge(request)

    def _charge(self, request: NormalizedRequest) -> Charge | None:
        rule = self.rule
        identity = self.identify(request)
        if (self._exempts or self._values) and self.why_exempt(request, identity) is not None:
            return None
        key, value, missing = identity
        cost = request.cost
        if cost is None:
            cost = rule.cost.default
            if rule.cost.header is not None:
                cost = cost_of(rule.cost, request).units
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
            kind = ChargeKind.SHADOW
        return ReadyCharge(key, limits, cost, kind, rule.rule_id)

    def why_exempt(self, request: NormalizedRequest, identity: IdentifiedKey) -> str | None:
        """Why the rule exempts this request, in words; `None` if it does not."""
        exempt = self.rule.exempt
        if identity.value is not None and identity.value in exempt.values:
            return f"{identity.value!r} is exempt"
        for at, match in enumerate(exempt.matches):
            if why_not(match, request) is None:
                return f"it fits exempt.match[{at}]"
        return None


def fitting(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """The charges that fit into one call of an engine.

    Enforced charges come first; shadows get the room that is left. If the enforced ones alone do not fit, the first
    that does not is charged to a limit of 0: the request is denied, and nothing is counted.
    """
    room = MAX_STEPS
    for charge in charges:
        if charge.kind is ChargeKind.TAKE:
            room -= len(charge.limits)
            if room < 0:
                cost = charge.cost or 1
                return (ReadyCharge(charge.key, DENY, cost, ChargeKind.TAKE, charge.rule),)
    kept = []
    for charge in charges:
        if charge.kind is not ChargeKind.TAKE:
            if len(charge.limits) > room:
                continue
            room -= len(charge.limits)
        kept.append(charge)
    return tuple(kept)


class RequestCost(NamedTuple):
    """What a request costs."""

    units: int
    note: str = ""
    """Why its header was not used as it is."""


def cost_of(cost: Cost, request: NormalizedRequest) -> RequestCost:
    """What a request costs.

    A missing or malformed header, or one that says 0, neither makes a request free nor gets it refused.
    """
    if cost.header is None:
        return RequestCost(cost.default)
    text = request.headers.get(cost.header)
    if text is None:
        note = f"there is no header {cost.header}, so it costs {cost.default}"
        return RequestCost(cost.default, note)
    if not (text.isascii() and text.isdigit()):
        note = f"the header {cost.header} is not a whole number, so it costs {cost.default}"
        return RequestCost(cost.default, note)
    asked = int(text) if len(text) <= 16 else cost.maximum + 1
    if asked > cost.maximum:
        note = f"the header {cost.header} asks for more than {cost.maximum}"
        return RequestCost(cost.maximum, note)
    if asked < cost.minimum:
        note = f"the header {cost.header} asks for less than {cost.minimum}"
        return RequestCost(cost.minimum, note)
    return RequestCost(asked)


def bucket_of(rule: Rule, key: str) -> int:
    """The bucket of a key, 0 to 99: fixed for each rule and key.

    A rule is enforced for keys whose bucket is below its percentage, so raising that only ever adds keys.
    """
    digest = blake2b(
        f"{rule.rule_id}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
    return int.from_bytes(digest, "big") % 100


def is_enforced(rule: Rule, key: str) -> bool:
    """Whether the rule is enforced for this key."""
    return bucket_of(rule, key) < rule.enforce_percent
