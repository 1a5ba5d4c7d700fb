"""What an algorithm is: a frozen limit that moves one key's state through time.

Every algorithm is one file with one class, and the class is the limit itself: its numbers are its
fields, its methods are the arithmetic. Methods are pure. They read no clock and touch no store: given
a state and a time they return the next state and an answer, and an engine decides where the state
lives and how one step is made atomic. `None` is the state of a key that was never used.

The rules that all of them keep:

- **Integers only**, in microseconds, and every intermediate value stays below 2**53, so that the Lua
  twin of a file, which computes in doubles, gives the same answers. The bounds are checked when a
  limit is built, never later.
- **A denial changes nothing**, so hammering a limited key never delays its recovery. (Backoff is about
  denials and is the exception.)
- **What lies ahead of now is taken as now.** A clock that stepped back finds state from its own future;
  pulling that state to the present costs nobody a unit and freezes nothing.
- **`retry_after_us` is tight**: a retry then passes if nobody else came; one microsecond earlier fails.
- **State outlives numbers.** `identity` names what a state is kept under: algorithm and window,
  but not limit and burst, so changing those keeps what was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol, TypeAlias

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable

State: TypeAlias = Any
"""An immutable value that only its own algorithm looks into; `None` means never used."""

Answer: TypeAlias = tuple[bool, int, int, int, int]
"""`(allowed, remaining, retry_after_us, reset_after_us, backoff_level)`, a plain tuple for speed."""

Start: TypeAlias = Any
"""When a window started, in microseconds: one number that the states of all keys share.

It is an object even in the compiled build, which would else keep a copy for each key, and is told by `is` first.
"""

Bounds: TypeAlias = tuple[int, int, Start]
"""Where a window starts and ends, and its start once more, as the object that states share."""

NO_BOUNDS: Final[Bounds] = (0, 0, 0)

NEVER: Final = -1
"""`retry_after_us` of a cost that can never fit, however long one waits."""

MAX_EXACT: Final = 2**53 - 1
"""The largest integer that a double holds exactly, and so the largest number anywhere."""

MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 366 * 86_400 * 1_000_000
MAX_MEMBERS: Final = 100_000
"""How many separate entries (requests in a log, holders of slots) one key may keep."""


class Whole(Protocol):
    """A plain integer, as far as a type checker can tell: `require_whole` makes sure, in our own words.

    (Said to be `int`, an argument of a compiled function would be refused in other words, and `True` taken as 1.)
    """

    def bit_length(self) -> int:
        """What integers have and other numbers have not."""


class Limit:
    """The contract of an algorithm. `token_bucket.py` is a good file to copy.

    A limit is a value: equal to another that was made of the same numbers, and never changed.
    """

    __slots__ = ("identity", "limit", "made_of", "window_us")
    __match_args__: ClassVar[tuple[str, ...]] = ()
    """What a limit is made of, in the order in which its class takes it."""

    name: ClassVar[str]
    """How users and stores call the algorithm."""

    counts_denials: ClassVar[bool] = False
    """Whether being denied makes things worse for a key, so that a waiter should rather peek."""

    limit: int
    """Units per window (or slots); 0 denies everything."""

    window_us: int
    """The window's length; for calendar windows the nominal one; 0 where there is none."""

    identity: str
    """What the state is kept under, next to namespace, rule and key."""

    made_of: tuple[object, ...]

    def __init__(self, *made_of: object) -> None:
        self.made_of = made_of

    def take(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Take `cost` units if they fit. The state is the same object when nothing changed."""
        raise NotImplementedError

    def peek(self, state: State, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer, with `remaining` as it is before taking."""
        raise NotImplementedError

    def force(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Charge `cost` units without asking; the key may end up over its limit."""
        raise NotImplementedError

    def mark(self, state: State) -> State:
        """What a later `refund` must know of the take that has just led to `state`."""
        raise NotImplementedError

    def refund(
        self, state: State, mark: State, now_us: int, cost: int, refunded: int
    ) -> tuple[State, int]:
        """Give back `cost` units of the take at `mark`, unless they have flowed back by themselves.

        `refunded` adds up what refunds of this key returned since `mark`, in the algorithm's own
        measure; the second value is this refund's contribution to that sum.
        """
        raise NotImplementedError

    def used(self, state: State, now_us: int) -> int:
        """Units in use now: the count that `stats` shows."""
        raise NotImplementedError

    def idle_at_us(self, state: State) -> int:
        """When `state` means the same as `None`, and may be dropped without a trace."""
        raise NotImplementedError

    def encode(self, state: State) -> Hashable:
        """The state as numbers, strings and tuples of them, to be written to a file."""
        raise NotImplementedError

    def decode(self, data: Any) -> State:
        """The inverse of `encode`; raises `ValueError`, `TypeError` or `KeyError` on foreign data."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"a limit is never changed, and so is its {name}; make another")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a limit is never changed, and so is its {name}; make another")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return isinstance(other, Limit) and other.made_of == self.made_of

    def __hash__(self) -> int:
        return hash(self.made_of)

    def __repr__(self) -> str:
        parts = zip(self.__match_args__, self.made_of, strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={part!r}' for name, part in parts)})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.made_of


class Candidate(Limit):
    """A limit that can also be charged without being asked for an answer, as `Adaptive` does."""

    __slots__ = ()

    def charge(self, state: State, now_us: int, cost: int) -> State:
        """What `force` makes of the state; the cost is at least 1."""
        raise NotImplementedError


def require_whole(name: str, value: object, low: int, high: int) -> int:
    """Refuse anything but a plain integer in `[low, high]`; `True` is not a number here. A name begins with the argument's."""
    if type(value) is not int:
        refuse(f"{name} must be a whole number, not {_named(value)}", name.partition(" ")[0])
    if not low <= value <= high:
        refuse(
            f"{name} must be between {low} and {high}, not {_shown(value)}", name.partition(" ")[0]
        )
    return value


def require_window(window_us: object) -> int:
    """Refuse windows shorter than a millisecond or longer than a leap year."""
    if type(window_us) is not int:
        refuse(f"a window must be a whole number of microseconds, not {window_us!r}", "window")
    if not MIN_WINDOW_US <= window_us <= MAX_WINDOW_US:
        refuse(
            f"a window must last between 1 ms and 366 days, not {_shown(window_us)} microseconds",
            "window",
        )
    return window_us


def refuse(message: str, argument: str | None = None) -> NoReturn:
    """Raise the `UsageError` that every constructor raises."""
    raise UsageError(message, argument)


def _shown(value: int) -> str:
    """Digits of a number; Python itself refuses to print very long ones."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def _named(value: object) -> str:
    """A value as it prints, or what it is if printing it fails."""
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} of too many digits"
