"""Charge and ChargeSet: the input of an engine.

A request is a set of charges that are taken together or not at all. A charge names a key, its limits, and a cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from .algorithms.base import MAX_EXACT, Whole, require_whole
from .charge_kind import ChargeKind as Kind
from .errors import UsageError
from .rate import LIMITS, RateLike, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .algorithms import Limit

MAX_KEY_BYTES: Final = 8_192
MAX_STEPS: Final = 128
"""The most limits of one request, over all of its charges, which are decided in one step."""
ONE: Final = 1
MAX_SHOWN: Final = 256


class Text(Protocol):
    """A string, as far as a type checker can tell; see `Whole`."""

    def casefold(self) -> str:
        """What strings have and bytes have not."""


TAKE: Final = Kind.TAKE


class Charge:
    """`cost` units of `rate` for `key`.

    >>> Charge("user:42", "100/minute", cost=3)
    Charge('user:42', 3 of SlidingWindow(limit=100, window_us=60000000))

    A limit object, such as `FixedWindow(100, 60_000_000)`, also works as a rate, and is the fastest one: it needs no
    lookup.
    """

    __slots__ = ("cost", "key", "kind", "limits", "rule")

    def __init__(
        self,
        key: Text,
        rate: RateLike,
        cost: Whole = 1,
        algorithm: Text | None = None,
        *,
        kind: Kind = TAKE,
        rule: Text | None = None,
    ) -> None:
        self.key: str = key if type(key) is str else require_key(key)
        limit: Any = rate
        named: Any = algorithm
        ready = named is None and type(limit) in LIMITS
        self.limits: tuple[Limit, ...] = (limit,) if ready else limits_of(limit, named)
        # The usual cost needs no check; `True` is another object.
        self.cost: int = 1 if cost is ONE else require_cost(cost)
        self.kind: Kind = kind if kind is TAKE else require_kind(kind)
        self.rule: str | None = None if rule is None else require_text("rule", rule)

    def of_kind(self, kind: Kind) -> Charge:
        """The same charge, of another kind."""
        return ReadyCharge(self.key, self.limits, self.cost, kind, self.rule)

    def __repr__(self) -> str:
        limits = " and ".join(map(repr, self.limits))
        return f"Charge({self.key!r}, {self.cost} of {limits})"


class ReadyCharge(Charge):
    """A charge whose limits and other parts were already checked."""

    __slots__ = ()

    def __init__(
        self, key: str, limits: tuple[Limit, ...], cost: int, kind: Kind, rule: str | None
    ) -> None:
        self.key = key
        self.limits = limits
        self.cost = cost
        self.kind = kind
        self.rule = rule


class PastCharge(ReadyCharge):
    """Units that were admitted elsewhere, some time ago: charged by force, and by a log as of that moment."""

    __slots__ = ("came_us",)

    def __init__(
        self, key: str, limits: tuple[Limit, ...], cost: int, came_us: int, rule: str | None
    ) -> None:
        super().__init__(key, limits, cost, Kind.FORCE, rule)
        self.came_us = came_us


class ReplacedCharge(ReadyCharge):
    """A charge whose limits a guard has replaced, and the limits that were asked for."""

    __slots__ = ("asked",)

    def __init__(self, charge: Charge, limits: tuple[Limit, ...]) -> None:
        super().__init__(charge.key, limits, charge.cost, charge.kind, charge.rule)
        self.asked = charge.limits


class ChargeSet(NamedTuple):
    """Charges that pass or fail together, and what else the caller wants with them."""

    charges: tuple[Charge, ...]
    wait_us: int = 0
    """How long the caller would wait in line, if the algorithm has one."""
    reserve_us: int = 0
    """How long to keep a record of the reservation, so that its cost can be settled later."""
    token: str | None = None
    """The name of that record, or of the slots to hold."""


def request_of(charges: Iterable[Charge]) -> ChargeSet:
    """One request of all these charges; anything else is refused."""
    try:
        together: tuple[Any, ...] = tuple(charges)
    except TypeError:
        raise UsageError(f"charges must be a list, such as [{_EXAMPLE}], not {charges!r}") from None
    if not together:
        raise UsageError(
            f"there is nothing to decide: pass at least one Charge, such as {_EXAMPLE}"
        )
    steps = 0
    for charge in together:
        if not isinstance(charge, Charge):
            raise UsageError(f"{charge!r} is not a charge; write it like {_EXAMPLE}")
        steps += len(charge.limits)
    if steps > MAX_STEPS:
        require_steps(steps)
    return tuple.__new__(ChargeSet, (together, 0, 0, None))  # Much faster than to call the class.


_EXAMPLE: Final = "Charge('user:42', '100/minute')"


def shown(key: str) -> str:
    """The key, cut to fit into a line of a log."""
    return key[:MAX_SHOWN]


def require_key(key: object) -> str:
    """Refuse keys that no engine could store, or that would be stored differently by two of them."""
    if not isinstance(key, str):
        raise UsageError(f"a key must be a string, not {key!r}; convert it first", "key")
    if not key:
        raise UsageError("a key must not be empty; use a string such as 'user:42'", "key")
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(
            f"a key has at most {MAX_KEY_BYTES} bytes, not {len(key)}; hash it first", "key"
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"the key {key!r} has half a surrogate pair and is not valid text", "key"
        ) from None
    if size > MAX_KEY_BYTES:
        raise UsageError(
            f"a key has at most {MAX_KEY_BYTES} bytes, not {size}; hash it first", "key"
        )
    return key


def require_steps(steps: int) -> None:
    """Refuse requests that would block others for too long."""
    if steps > MAX_STEPS:
        raise UsageError(
            f"one request may have at most {MAX_STEPS} limits, over all of its charges, not {steps}; split it"
        )


def require_text(name: str, value: object) -> str:
    """Refuse values that are not strings, or that some engine could not store."""
    if not isinstance(value, str):
        raise UsageError(f"a {name} must be a string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the {name} {value!r} has half a surrogate pair and is not valid text"
        ) from None
    return value


def require_kind(kind: object) -> Kind:
    """Refuse anything but a `Kind`, also its value."""
    if not isinstance(kind, Kind):
        raise UsageError(f"a kind must be a ChargeKind, such as ChargeKind.PEEK, not {kind!r}")
    return kind


def require_cost(cost: object) -> int:
    """Refuse anything but a whole number from 0 to 2**53 - 1."""
    return require_whole("cost", cost, 0, MAX_EXACT)


def require_costs(actual: object) -> tuple[int, ...]:
    """The real cost of a reservation: one number for all of its charges, or one for each."""
    if isinstance(actual, list | tuple) and actual:
        return tuple([require_cost(one) for one in actual])
    return (require_cost(actual),)


def other_charges(given: int) -> UsageError:
    """The error for a number of costs that differs from the number of charges."""
    return UsageError(
        f"pass one cost for each charge of the reservation, in order, not {given}",
        "actual",
    )
