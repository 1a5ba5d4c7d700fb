"""What a caller holds: reservations, which are settled, and slots, which are released."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from . import _flow
from ._drivers import run
from ._spec import stats_of
from .algorithms import Concurrency
from .algorithms.concurrency import MAX_TTL_US, MIN_TTL_US
from .charge import Charge, ChargeSet, require_cost, require_key, shown
from .charge_kind import ChargeKind
from .engines.base import AsyncEngine, Engine
from .errors import HeadgateError, UsageError, may_have_happened

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from typing import Self

    from ._renewal import Renewer
    from ._spec import Stats
    from .decision import Decision

E = TypeVar("E", Engine, AsyncEngine)

RESERVATION_TTL = 600.0
SLOT_TTL = 30.0
MAX_RESERVATION_TTL = 86_400.0

NOT_SETTLED = "a reservation of %r could not be settled, and its estimate stays charged: %s"
NOT_RELEASED = "a slot of %r could not be released, and will expire: %s"
NOT_RENEWED = "a slot of %r could not be renewed: %s"
LOST = "a slot of %r expired while it was held"


class ReservationBase(Generic[E]):
    """Costs that are charged now and settled later: the part that sync and async share."""

    def __init__(
        self,
        engine: E,
        request: ChargeSet,
        timeout: float | None,
        ttl: float,
        *,
        logger: logging.Logger,
    ) -> None:
        if isinstance(ttl, bool) or not isinstance(ttl, int | float):
            raise UsageError(f"ttl is a number of seconds, not {ttl!r}", "ttl")
        if not 0.001 <= ttl <= MAX_RESERVATION_TTL:
            raise UsageError(
                f"ttl must be between 0.001 and {MAX_RESERVATION_TTL:g} s, not {ttl!r}", "ttl"
            )
        self._engine: E = engine
        self._log = logger
        self._timeout = timeout
        self._request = request._replace(reserve_us=round(ttl * 1_000_000))
        self._settled = False
        self._actual_costs: tuple[int, ...] | None = None
        self._pid = 0
        """The process that made it. A child that leaves the block leaves it to its parent."""
        self.costs = tuple(charge.cost for charge in request.charges)
        """The estimates, one for each charge."""
        self.decision: Decision | None = None
        """How the estimates were granted; `None` before that."""

    @property
    def cost(self) -> int:
        """The estimate; with several charges, the first one."""
        return self.costs[0]

    def _begin(self) -> ChargeSet:
        """The request. It has a name, so that a caller that gets no answer can withdraw it."""
        if self.decision is not None:
            raise UsageError("a reservation can be used only once; create another one")
        self._pid = os.getpid()
        return self._request._replace(token=secrets.token_hex(16))

    @contextmanager
    def _settling(self, actual: tuple[int, ...]) -> Iterator[tuple[str, int | tuple[int, ...]]]:
        """Wraps the call that settles: one that was certainly not carried out can be retried."""
        for one in actual:
            require_cost(one)
        if len(actual) != len(self.costs):
            many = "one for each of its charges" if len(self.costs) > 1 else "the real cost"
            raise UsageError(
                f"settle this reservation with {len(self.costs)} numbers, {many}, not {len(actual)}",
                "actual",
            )
        if self.decision is None or self.decision.token is None:
            raise UsageError("there is nothing to settle: enter the reservation with `with` first")
        if self._settled:
            raise UsageError("this reservation is already settled")
        self._actual_costs = actual
        try:
            yield self.decision.token, actual[0] if len(actual) == 1 else actual
        except BaseException as error:
            self._settled = may_have_happened(error)
            raise
        self._settled = True

    def _costs_on_leaving(self, *, failed: bool) -> tuple[int, ...]:
        """The cost to settle at the end of the block: the caller's real cost, if it could not be sent before."""
        if self._actual_costs is not None:
            return self._actual_costs
        return (0,) * len(self.costs) if failed else self.costs

    @property
    def _is_to_settle(self) -> bool:
        """Whether leaving the block settles it."""
        return not self._settled and self._pid == os.getpid()

    @property
    def settled(self) -> bool:
        """Whether the real cost has been settled."""
        return self._settled

    @property
    def _shown(self) -> str:
        return " and ".join(shown(charge.key) for charge in self._request.charges)


class Reservation(ReservationBase[Engine]):
    """Costs that are charged now and settled later, for one key or several.

    Leaving the `with` block by an exception gives the estimate back; leaving it without settling keeps it charged. If
    the process dies, it stays charged. If the engine fails at that point, it is logged and the estimate stays charged;
    the exception that ended the block is raised.
    """

    def acquire(self) -> Self:
        """Charge the estimate, waiting for it if the mode is blocking.

        An interrupt in the middle gives back what may have been charged.
        """
        request = self._begin()
        try:
            steps = _flow.acquire(request, self._timeout, self._engine.clock.now_us)
            self.decision = run(steps, self._engine, self._log)
            return self  # noqa: TRY300 - up to here an interrupt gives it back
        except BaseException as error:
            if may_have_happened(error):
                self._withdraw(request)
            raise

    def settle(self, *actual: int) -> bool:
        """Settle the real cost, or one per charge in order. The difference is refunded, or charged even over the limit.

        False when the reservation was older than its time to live, or a key was reset since: nothing
        changes then. After an error that is not `indefinite` it can be tried again.
        """
        with self._settling(actual) as (token, used):
            return self._engine.settle(token, used)

    def _withdraw(self, request: ChargeSet) -> None:
        self._settled = self.decision is not None
        try:
            self._engine.withdraw(request)
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, self._shown, error)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_to_settle:
            return
        try:
            self.settle(*self._costs_on_leaving(failed=kind is not None))
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, self._shown, error)


class SlotsSpec:
    """A number of slots: the part that sync and async share."""

    def __init__(self, key: str, limit: int) -> None:
        require_key(key)
        self.key = key
        self.limit = Concurrency(limit)

    def peek(self) -> ChargeSet:
        """Ask whether a slot is free."""
        return ChargeSet((Charge(self.key, self.limit, kind=ChargeKind.PEEK),))

    def request(self, cost: int, ttl: float) -> ChargeSet:
        """A request for slots; each acquisition adds the holder's name."""
        if isinstance(ttl, bool) or not isinstance(ttl, int | float):
            raise UsageError(f"ttl is a number of seconds, not {ttl!r}", "ttl")
        low, high = MIN_TTL_US / 1_000_000, MAX_TTL_US / 1_000_000
        if not low <= ttl <= high:
            raise UsageError(f"ttl must be between {low:g} and {high:g} s, not {ttl!r}", "ttl")
        limit = Concurrency(self.limit.limit, round(ttl * 1_000_000))
        if type(cost) is int and cost < 1:
            raise UsageError(f"a holder needs at least one slot, not {cost}", "cost")
        return ChargeSet((Charge(self.key, limit, cost),))


class Slots:
    """A limit on how many can hold a key at the same time.

    >>> from headgate import Limiter
    >>> reports = Limiter().concurrency("reports", 10)
    >>> with reports.slot():
    ...     reports.stats().remaining
    9
    """

    def __init__(
        self, engine: Engine, key: str, limit: int, renewer: Renewer, logger: logging.Logger
    ) -> None:
        self._engine = engine
        self._spec = SlotsSpec(key, limit)
        self._renewer = renewer
        self._log = logger

    def slot(self, *, ttl: float = SLOT_TTL, timeout: float | None = 0, cost: int = 1) -> Slot:
        """A slot to hold with `with`. Raises `RateLimitExceeded` when none is free within `timeout`.

        It is renewed while held; if the process dies, it is free again after `ttl` seconds. One object holds one slot
        at a time, and can be reused after it is released.
        """
        request = self._spec.request(cost, ttl)
        return Slot(self._engine, request, timeout, self._renewer, self._log)

    def check(self) -> Decision:
        """Say whether a slot is free."""
        return self._engine.decide([self._spec.peek()])[0]

    def stats(self) -> Stats:
        """How many slots are held and free."""
        limit = self._spec.limit
        return stats_of(limit, self._engine.usage(self._spec.key, limit))

    def reset(self) -> None:
        """Free all slots, no matter who holds them."""
        self._engine.reset(self._spec.key, self._spec.limit)


class SlotBase(Generic[E]):
    """A slot of one holder: the part that sync and async share."""

    def __init__(
        self, engine: E, request: ChargeSet, timeout: float | None, logger: logging.Logger
    ) -> None:
        self._engine: E = engine
        self._request = request
        self._timeout = timeout
        self._log = logger
        (charge,) = request.charges
        (limit,) = charge.limits
        assert isinstance(limit, Concurrency)
        self.key = charge.key
        self.token = ""
        """The name under which the slot is held: new each time, and not guessable."""
        self.limit = limit
        self.lost = False
        """Whether the slot expired while it was held, so that another holder may have it."""
        self._user: dict[str, str] = {}
        """The token of the current user of this object, if any; tested and set in one atomic step."""
        self._granted = ""
        """The token of the last slot that was granted: not that of a user who still waits for one."""
        self._held_until = 0.0
        self._pid = 0
        """The process that holds it: a child must not release what its parent holds."""

    def _begin(self, user: str) -> ChargeSet:
        """The request for this acquisition. Reusing a name would be one slot for two holders."""
        if self._user.setdefault("now", user) is not user:
            raise UsageError(
                f"this slot of {shown(self.key)!r} is already held; create another one with slot()"
            )
        self.token = user
        self._pid = os.getpid()
        self.lost = False
        self._held_until = time.monotonic() + self.limit.ttl_us / 1_000_000
        return self._request._replace(token=self.token)

    def _end(self, user: str) -> None:
        """Make the object reusable, if this user held it."""
        if self._user.get("now") == user:
            self._user.clear()

    def _held_by(self) -> str | None:
        """The user whose slot is to be released, if there is any. One who still waits for it keeps waiting."""
        if self._pid != os.getpid():
            self._user.clear()
        user = self._user.get("now")
        return user if user == self._granted else None

    def _renewed(self, asked: float, *, held: bool) -> None:
        """Note the answer to a renewal, and report a lost slot."""
        if held:
            self._held_until = asked + self.limit.ttl_us / 1_000_000
            self.lost = False
        elif not self.lost:
            self.lost = True
            self._log.warning(LOST, shown(self.key))

    def not_renewed(self, error: Exception) -> None:
        """A renewal has failed. The next one may still be in time; after that the slot counts as lost."""
        self._log.warning(NOT_RENEWED, shown(self.key), error)
        if time.monotonic() >= self._held_until:
            self._renewed(0.0, held=False)

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals: after one missed renewal the next is still in time."""
        return self.limit.ttl_us / 3_000_000


class Slot(SlotBase[Engine]):
    """A slot, held inside a `with` block, or from `acquire` to `release`, and renewed until then."""

    def __init__(
        self,
        engine: Engine,
        request: ChargeSet,
        timeout: float | None,
        renewer: Renewer,
        logger: logging.Logger,
    ) -> None:
        super().__init__(engine, request, timeout, logger)
        self._renewer = renewer

    def renew(self) -> bool:
        """Renew the slot; false when it is lost."""
        token, asked = self.token, time.monotonic()
        held = self._engine.renew(self.key, self.limit, token)
        if token != self.token or not self._user:  # That answer was for an earlier acquisition.
            return True
        self._renewed(asked, held=held)
        return held

    def acquire(self) -> Self:
        """Hold a slot, renewed until it is released. Raises `RateLimitExceeded` when none is free in time."""
        user = secrets.token_hex(16)
        try:
            request = self._begin(user)
            steps = _flow.hold(request, self._timeout, self._engine.clock.now_us)
            run(steps, self._engine, self._log)
            self._granted = user
            self._renewer.add(self)
            return self  # noqa: TRY300 - up to here an interrupt lets go
        except BaseException as error:  # An interrupt may also have come right after the answer.
            if may_have_happened(error) and self._user.get("now") == user:
                self._release(user)
            self._end(user)
            raise

    def release(self) -> None:
        """Release the slot; does nothing if it is not held by this process, or not yet."""
        if self._user:
            self._release(None)

    def _release(self, user: str | None) -> None:
        """Release the slot of this user, or of the one who holds it."""
        try:
            self._release_once(user or self._held_by())
        except BaseException:  # Interrupted: try once more before re-raising.
            try:
                self._release_once(user or self._held_by())
            finally:
                self._end(user or self._granted)
            raise

    def _release_once(self, user: str | None) -> None:
        if user is None:
            return
        self._renewer.remove(self)
        if self._user.get("now", user) != user:
            # Another thread has released it, and it is held again.
            self._renewer.add(self)
        try:
            self._engine.release(self.key, self.limit, user)
        except HeadgateError as error:
            self._log.warning(NOT_RELEASED, shown(self.key), error)
        self._end(user)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
