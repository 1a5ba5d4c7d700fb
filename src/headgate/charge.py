"""Charge and Request: what an engine is asked.

A request is a set of charges that are taken together or not at all. A charge names a key, the limits that
hold for it, and a cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from .algorithms.base import MAX_EXACT, Whole, require_whole
from .errors import UsageError
from .kind import Kind as Kind  # noqa: PLC0414 - offered here as well
from .rate import LIMITS, RateLike, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .algorithms import Limit

MAX_KEY_BYTES: Final = 8_192
MAX_STEPS: Final = 128
"""How many limits one request may ask, over all of its charges: it is decided in one go."""
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

    A limit that is ready, such as `FixedWindow(100, 60_000_000)`, is a rate as well, and the fastest one: nothing has to be looked up.
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
    """A charge of limits that are ready, and of everything else that was checked before."""

    __slots__ = ()

    def __init__(
        self, key: str, limits: tuple[Limit, ...], cost: int, kind: Kind, rule: str | None
    ) -> None:
        self.key = key
        self.limits = limits
        self.cost = cost
        self.kind = kind
        self.rule = rule


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
        together: tuple[Any, ...] = tuple(charges)
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


_EXAMPLE: Final = "Charge('user:42', '100/minute')"


def shown(key: str) -> str:
    """The key, not too long for a line in a log."""
    return key[:MAX_SHOWN]


def require_key(key: object) -> str:
    """Refuse keys that no engine could store, or that would be stored differently by two of them."""
    if not isinstance(key, str):
        raise UsageError(f"a key is text, not {key!r}; turn it into a string first", "key")
    if not key:
        raise UsageError("a key must not be empty; name whom the limit is for", "key")
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(
            f"a key has at most {MAX_KEY_BYTES} bytes, not {len(key)}; hash it first", "key"
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"the key {key!r} holds half a surrogate pair and is not text", "key"
        ) from None
    if size > MAX_KEY_BYTES:
        raise UsageError(
            f"a key has at most {MAX_KEY_BYTES} bytes, not {size}; hash it first", "key"
        )
    return key


def require_steps(steps: int) -> None:
    """Refuse requests that would hold up everybody else for too long."""
    if steps > MAX_STEPS:
        raise UsageError(
            f"one request asks at most {MAX_STEPS} limits, over all of its charges, not {steps}; ask in parts"
        )


def require_text(name: str, value: object) -> str:
    """Refuse what is no text, or none that every engine could store."""
    if not isinstance(value, str):
        raise UsageError(f"a {name} is text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the {name} {value!r} holds half a surrogate pair and is not text"
        ) from None
    return value


def require_kind(kind: object) -> Kind:
    """Refuse anything but a `Kind`, also its value."""
    if not isinstance(kind, Kind):
        raise UsageError(f"a kind is one of Kind, such as Kind.PEEK, not {kind!r}")
    return kind


def require_cost(cost: object) -> int:
    """Refuse anything but a whole number from 0 to 2**53 - 1."""
    return require_whole("cost", cost, 0, MAX_EXACT)
