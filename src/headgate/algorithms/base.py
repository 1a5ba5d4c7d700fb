"""The contract of an algorithm: an immutable limit that moves one key's state through time.

Every algorithm is one file with one class, and the class is the limit itself: its numbers are its
fields, its methods are the arithmetic. Methods are pure. They read no clock and touch no store: given
a state and a time they return the next state and an answer, and an engine decides where the state
lives and how one step is made atomic. `None` is the state of a key that was never used.

All of them follow these rules:

- **Integers only**, in microseconds, and every intermediate value stays below 2**53, so that the Lua
  twin of a file, which computes in doubles, gives the same answers. The bounds are checked when a
  limit is built, never later.
- **A denial changes nothing**, so hammering a limited key never delays its recovery. (Backoff is about
  denials and is the exception.)
- **For one key, time never runs backwards.** If a clock was set back, or the next master's clock is behind, a state may
  be ahead of now. A key's time is the latest time in its state (the start of a window, a stamp, the newest entry, a
  cool-down, the newest slot). If it is ahead of now by at most `max_lead_us`, it is used as now; if it is further
  ahead, every time in the state is cut to now. See `Limit.seen`.

  So a step back admits nothing extra, and delays recovery by at most `max_lead_us`. A step forward by d admits what d
  allows: once while the clock flips within `max_lead_us`, else once per flip. Times in answers are relative to the real
  clock, so the lead is added to them.
- **`retry_after_us` is tight**: a retry then passes if no other caller came first; one microsecond earlier fails.
- **State outlives numbers.** `identity` is what a state is stored under: algorithm and window, but not limit and burst,
  so changing those keeps the usage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol, TypeAlias

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable

State: TypeAlias = Any
"""An immutable value that only its own algorithm reads; `None` means never used."""

Answer: TypeAlias = tuple[bool, int, int, int, int]
"""`(allowed, remaining, retry_after_us, reset_after_us, backoff_level)`, a plain tuple for speed."""

Start: TypeAlias = Any
"""When a window started, in microseconds: one number that the states of all keys share.

It is a shared object even in the compiled build, which would otherwise store a copy per key, and is compared by `is`
first.
"""

Bounds: TypeAlias = tuple[int, int, Start]
"""Where a window starts and ends, and its start again as the object that states share."""

NO_BOUNDS: Final[Bounds] = (0, 0, 0)

NEVER: Final = -1
"""`retry_after_us` of a cost that can never fit."""

MAX_EXACT: Final = 2**53 - 1
"""The largest integer that a double holds exactly, and so the largest number anywhere."""

MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 366 * 86_400 * 1_000_000
MIN_LEASED_WINDOW_US: Final = 1_000_000
"""Leases last a twentieth of the window: in shorter windows they would end before they are useful."""
MAX_LEAD_US: Final = 60_000_000
"""The furthest a key's time may be ahead of now; a shorter window is the bound if there is one."""
MAX_MEMBERS: Final = 100_000
"""How many separate entries (requests in a log, holders of slots) one key may keep."""


class Whole(Protocol):
    """A plain integer to a type checker; `require_whole` checks it at run time, with our own message.

    (A compiled function would refuse a wrong `int` argument with another message, and accept `True` as 1.)
    """

    def bit_length(self) -> int:
        """A method that integers have and other numbers do not."""


class Limit:
    """The contract of an algorithm. `token_bucket.py` is a good file to copy.

    A limit is a value: it never changes, and is equal to another with the same numbers.
    """

    __slots__ = (
        "consistency",
        "decider",
        "identity",
        "limit",
        "made_of",
        "max_lead_us",
        "window_us",
    )
    __match_args__: ClassVar[tuple[str, ...]] = ()
    """The arguments of a limit, in the order of its constructor."""

    name: ClassVar[str]
    """The algorithm's name for users and stores."""

    guarantee: ClassVar[str]
    """The guarantee in one line, whatever callers do; every page and message takes it from here."""

    counts_denials: ClassVar[bool] = False
    """Whether a denial counts against the key, so that a waiter should peek first."""

    watched: ClassVar[bool] = False
    """Whether a refund depends on how low the state has fallen since the take, so that low-water marks are kept."""

    leasable: ClassVar[bool] = False
    """Whether a node may take units now and spend them a little later."""

    regional: ClassVar[tuple[str, ...]] = ("split",)
    """How several regions can share one limit of this kind."""

    limit: int
    """Units per window (or slots); 0 denies everything."""

    window_us: int
    """The window's length; for calendar windows the nominal one; 0 where there is none."""

    max_lead_us: int
    """How far ahead of now a key's time is used as now: the window, but at most a minute."""

    identity: str
    """What the state is stored under, besides namespace, rule and key."""

    decider: str
    """The algorithm that decides: this one, or the candidate that an adaptive limit has chosen."""

    consistency: str
    """How nodes or regions share it: `exact`, `leased` (see `as_leased`), or a mode of `across_regions`."""

    made_of: tuple[object, ...]

    def __init__(self, *made_of: object) -> None:
        self.made_of = made_of
        self.decider = self._decider()
        self.consistency = "exact"

    @property
    def leased(self) -> bool:
        """Whether nodes take units in chunks; see `as_leased`."""
        return self.consistency == "leased"

    def as_leased(self) -> Limit:
        """The same limit, whose units nodes take in chunks and answer from, if that saves round trips."""
        if not self.leasable:
            refuse(
                f"{self.name} cannot be leased, only fixed_window, sliding_window and token_bucket can; "
                "choose one of them, or consistency exact",
                "consistency",
            )
        if self.window_us < MIN_LEASED_WINDOW_US:
            refuse(
                "a leased limit needs a window of at least a second, not "
                f"{self.window_us} us; lengthen it, or choose consistency exact",
                "consistency",
            )
        return self._with_consistency("leased")

    def across_regions(self, mode: str) -> Limit:
        """The same limit, shared by several regions by `split`, `merge` or `escrow`."""
        if mode not in self.regional:
            one_of = " or ".join(self.regional)
            refuse(
                f"{self.name} cannot be shared across regions by {mode}, only by {one_of}; choose that, "
                "another algorithm, or consistency exact",
                "consistency",
            )
        return self._with_consistency(mode)

    def _with_consistency(self, consistency: str) -> Limit:
        made: Limit = type(self)(*self.made_of)
        object.__setattr__(made, "consistency", consistency)
        return made

    def take(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Take `cost` units if they fit.

        The state is the same object when nothing changed; the compiled build may replace one that is ahead of now.
        """
        raise NotImplementedError

    def peek(self, state: State, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer, with `remaining` as it is before taking."""
        seen, at_us = self.seen(state, now_us)
        return later(self._peek(seen, at_us, cost), at_us - now_us)

    def force(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Charge `cost` units without asking; the key may end up over its limit."""
        seen, at_us = self.seen(state, now_us)
        after, answer = self._force(seen, at_us, cost)
        return after, later(answer, at_us - now_us)

    def force_past(
        self, state: State, now_us: int, cost: int, came_us: int
    ) -> tuple[State, Answer]:
        """`force` for units that were admitted elsewhere, some time ago.

        Only a log keeps a time for each unit. For all others, the caller works out how many still count now.
        """
        return self.force(state, now_us, cost)

    def mark(self, state: State) -> State:
        """What a later `refund` must know about the take that has just led to `state`."""
        raise NotImplementedError

    def refund(
        self, state: State, mark: State, now_us: int, cost: int, low: int
    ) -> tuple[State, int]:
        """Give back `cost` units of the take at `mark`, unless they have already refilled.

        The second value is what was given back, in the algorithm's own unit. `low` is the lowest mark since the take,
        in the same unit, if low-water marks are kept.
        """
        seen, at_us = self.seen(state, now_us)
        return self._refund(seen, mark, at_us, cost, low)

    def low(self, state: State) -> int:
        """The low-water mark since the newest open reservation, where one is kept."""
        return 0

    def watch(self, state: State) -> tuple[State, int]:
        """Begin a new low-water mark with the take that has just led to `state`; also return the one before it."""
        return state, 0

    def unwatch(self, state: State) -> State:
        """The state without a low-water mark: no reservation is open any more."""
        return state

    def used(self, state: State, now_us: int) -> int:
        """Units in use now: the count that `stats` shows."""
        seen, at_us = self.seen(state, now_us)
        return self._used(seen, at_us)

    def seen(self, state: State, now_us: int) -> tuple[State, int]:
        """The state and the time to continue from; nothing in that state is ahead of it."""
        if state is None:
            return None, now_us
        latest_us = self.latest_us(state)
        if latest_us <= now_us:
            return state, now_us
        if latest_us - now_us <= self.max_lead_us:
            return state, latest_us
        return self._cut(state, now_us), now_us

    def latest_us(self, state: State) -> int:
        """The key's time: the latest time in its state."""
        raise NotImplementedError

    def idle_at_us(self, state: State) -> int:
        """When `state` means the same as `None`, and can be dropped without loss."""
        raise NotImplementedError

    def encode(self, state: State) -> Hashable:
        """The state as numbers, strings and tuples of them, to be written to a file."""
        raise NotImplementedError

    def decode(self, data: Any) -> State:
        """The inverse of `encode`; raises `ValueError`, `TypeError` or `KeyError` on foreign data."""
        raise NotImplementedError

    def counts_like(self, other: Limit) -> bool:
        """Whether both count the same in a shared state; adaptive limits may differ in which algorithm decides."""
        return self == other

    def _decider(self) -> str:
        return self.name

    # Subclasses override these instead of the four above; nothing in the state is ahead of `at_us`.

    def _peek(self, state: State, at_us: int, cost: int) -> Answer:
        raise NotImplementedError

    def _force(self, state: State, at_us: int, cost: int) -> tuple[State, Answer]:
        raise NotImplementedError

    def _refund(
        self, state: State, mark: State, at_us: int, cost: int, low: int
    ) -> tuple[State, int]:
        raise NotImplementedError

    def _used(self, state: State, at_us: int) -> int:
        raise NotImplementedError

    def _cut(self, state: State, now_us: int) -> State:
        """The state with every time that is ahead of now cut to now."""
        raise NotImplementedError

    def _take_ahead(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """What `take` does when the state is ahead of now. That is rare, so it is kept off the usual path."""
        seen, at_us = self.seen(state, now_us)
        after, answer = self.take(seen, at_us, cost)
        return after, later(answer, at_us - now_us)

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"a limit is never changed, and so is its {name}; make another")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a limit is never changed, and so is its {name}; make another")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        same = isinstance(other, Limit) and other.made_of == self.made_of
        return same and other.consistency == self.consistency

    def __hash__(self) -> int:
        return hash(self.made_of)

    def __repr__(self) -> str:
        parts = zip(self.__match_args__, self.made_of, strict=True)
        text = f"{type(self).__name__}({', '.join(f'{name}={part!r}' for name, part in parts)})"
        if self.consistency == "exact":
            return text
        return f"{text}.{'as_leased()' if self.leased else f'across_regions({self.consistency!r})'}"

    def __reduce__(self) -> tuple[object, ...]:
        if self.consistency == "exact":
            return (type(self), self.made_of)
        return (_unpickled, (type(self), self.made_of, self.consistency))


def _unpickled(kind: type[Limit], made_of: tuple[object, ...], consistency: str) -> Limit:
    """Unpickle a limit whose consistency is not exact."""
    made = kind(*made_of)
    return made.as_leased() if consistency == "leased" else made.across_regions(consistency)


class Candidate(Limit):
    """A limit that can also be charged without computing an answer, as `Adaptive` does."""

    __slots__ = ()

    def charge(self, state: State, now_us: int, cost: int) -> State:
        """The state after `force`; the cost is at least 1."""
        raise NotImplementedError

    def _charge_ahead(self, state: State, now_us: int, cost: int) -> State:
        """`_take_ahead` for `charge`."""
        seen, at_us = self.seen(state, now_us)
        return self.charge(seen, at_us, cost)


def later(answer: Answer, lead_us: int) -> Answer:
    """An answer computed for `lead_us` from now, with its times relative to now."""
    if not lead_us:
        return answer
    allowed, remaining, retry_after_us, reset_after_us, level = answer
    if retry_after_us > 0:
        retry_after_us += lead_us
    if reset_after_us > 0:
        reset_after_us += lead_us
    return (allowed, remaining, retry_after_us, reset_after_us, level)


def require_whole(name: str, value: object, low: int, high: int) -> int:
    """Refuse anything but an integer in `[low, high]`, `True` included. `name` starts with the argument's name."""
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
            f"a window must last between 1 ms and 366 days, not {_seconds(window_us)}",
            "window",
        )
    return window_us


def refuse(message: str, argument: str | None = None) -> NoReturn:
    """Raise the `UsageError` that every constructor raises."""
    raise UsageError(message, argument)


def _shown(value: int) -> str:
    """Digits of a number; Python itself refuses to print very long ones."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def _seconds(window_us: int) -> str:
    if abs(window_us) > MAX_EXACT:
        return f"{_shown(window_us)} microseconds"
    return f"{window_us / 1_000_000:.6f}".rstrip("0").rstrip(".") + " seconds"


def _named(value: object) -> str:
    """A value as it prints, or what it is if printing it fails."""
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} of too many digits"
