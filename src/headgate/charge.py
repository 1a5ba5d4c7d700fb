"""Charge and Request: what an engine is asked.

A request is a set of charges that are taken together or not at all. A charge names a key, the limits that
hold for it, and a cost.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from .algorithms.base import MAX_EXACT, require_whole
from .errors import UsageError
from .rate import RateLike, known_limits, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .algorithms import Limit

MAX_KEY_BYTES = 8_192
MAX_STEPS = 128
"""How many limits one request may ask, over all of its charges: it is decided in one go."""
ONE = 1
MAX_SHOWN = 256


class Kind(Enum):
    """What a charge does."""

    TAKE = "take"
    """Take the units if every charge of the request fits."""
    PEEK = "peek"
    """Say whether they would fit; change nothing."""
    FORCE = "force"
    """Charge without asking, if the others fit."""
    SHADOW = "shadow"
    """Count and report, but never deny."""


TAKE = Kind.TAKE


class Charge:
    """`cost` units of `rate` for `key`.

    >>> Charge("user:42", "100/minute", cost=3)
    Charge('user:42', 3 of SlidingWindow(limit=100, window_us=60000000))
    """

    __slots__ = ("cost", "key", "kind", "limits", "rule")

    def __init__(
        self,
        key: str,
        rate: RateLike,
        cost: int = 1,
        algorithm: str | None = None,
        *,
        kind: Kind = TAKE,
        rule: str | None = None,
    ) -> None:
        self.key = key
        self.limits: tuple[Limit, ...] = (
            known_limits(rate, algorithm)  # The usual case, in one look.
            if type(rate) is str and (algorithm is None or type(algorithm) is str)
            else limits_of(rate, algorithm)
        )
        self.cost = cost
        self.kind = kind
        self.rule = rule
        if cost is not ONE:  # The usual cost needs no check; `True` is another object.
            require_cost(cost)
        if kind is not TAKE:
            require_kind(kind)
        if rule is not None:
            require_rule(rule)

    @classmethod
    def of_limits(
        cls, key: str, limits: tuple[Limit, ...], cost: int, kind: Kind, rule: str | None
    ) -> Charge:
        """A charge of limits that are ready, and a cost that was checked."""
        charge = cls.__new__(cls)
        charge.key, charge.limits, charge.cost, charge.rule = key, limits, cost, rule
        charge.kind = kind
        return charge

    def of_kind(self, kind: Kind) -> Charge:
        """The same charge, of another kind."""
        twin = Charge.__new__(Charge)
        twin.key, twin.limits, twin.cost, twin.rule = self.key, self.limits, self.cost, self.rule
        twin.kind = kind
        return twin

    def __repr__(self) -> str:
        limits = " and ".join(map(repr, self.limits))
        return f"Charge({self.key!r}, {self.cost} of {limits})"


class Request(NamedTuple):
    """Charges that pass or fail together, and what else the caller wants with them."""

    charges: tuple[Charge, ...]
    wait_us: int = 0
    """How long the caller would stand in line, where the algorithm has one."""
    reserve_us: int = 0
    """Keep a record for that long, so that the cost can be settled later."""
    token: str | None = None
    """The name for that record, or for the slots that are to be held."""


def request_of(charges: Iterable[Charge]) -> Request:
    """One request of all these charges, if that is what they are."""
    try:
        together = tuple(charges)
    except TypeError:
        raise UsageError(
            f"charges come in a list, such as [{_EXAMPLE}], not as {charges!r}"
        ) from None
    if not together:
        raise UsageError(
            f"there is nothing to decide: pass at least one Charge, such as {_EXAMPLE}"
        )
    steps = 0
    for charge in together:
        if not isinstance(charge, Charge):
            raise UsageError(f"{charge!r} is no charge; write it like {_EXAMPLE}")
        steps += len(charge.limits)
    if steps > MAX_STEPS:
        require_steps(steps)
    return tuple.__new__(Request, (together, 0, 0, None))  # Much faster than to call the class.


_EXAMPLE = "Charge('user:42', '100/minute')"


def shown(key: str) -> str:
    """The key, not too long for a line in a log."""
    return key[:MAX_SHOWN]


def require_key(key: object) -> None:
    """Refuse keys that no engine could store, or that would be stored differently by two of them."""
    if not isinstance(key, str):
        raise UsageError(f"a key is text, not {key!r}; turn it into a string first")
    if not key:
        raise UsageError("a key must not be empty; name whom the limit is for")
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(f"a key has at most {MAX_KEY_BYTES} bytes, not {len(key)}; hash it first")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the key {key!r} holds half a surrogate pair and is not text") from None
    if size > MAX_KEY_BYTES:
        raise UsageError(f"a key has at most {MAX_KEY_BYTES} bytes, not {size}; hash it first")


def require_steps(steps: int) -> None:
    """Refuse requests that would hold up everybody else for too long."""
    if steps > MAX_STEPS:
        raise UsageError(
            f"one request asks at most {MAX_STEPS} limits, over all of its charges, not {steps}; ask in parts"
        )


def require_namespace(namespace: object) -> None:
    """Refuse namespaces that are no text."""
    require_text("namespace", namespace)


def require_rule(rule: object) -> None:
    """Refuse names of rules that are no text."""
    require_text("rule", rule)


def require_text(name: str, value: object) -> None:
    """Refuse what is no text, or none that every engine could store."""
    if not isinstance(value, str):
        raise UsageError(f"a {name} is text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the {name} {value!r} holds half a surrogate pair and is not text"
        ) from None


def require_kind(kind: object) -> None:
    """Refuse anything but a `Kind`, also its value."""
    if not isinstance(kind, Kind):
        raise UsageError(f"a kind is one of Kind, such as Kind.PEEK, not {kind!r}")


def require_cost(cost: object) -> None:
    """Refuse anything but a whole number from 0 to 2**53 - 1."""
    require_whole("cost", cost, 0, MAX_EXACT)
