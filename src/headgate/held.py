"""Things that are held for a while: reservations, to be settled, and slots, to be let go."""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import flow
from .algorithms import Concurrency
from .algorithms.concurrency import MAX_TTL_US, MIN_TTL_US
from .charge import Charge, Kind, Request, require_cost, require_key, shown
from .driver import run
from .errors import HeadgateError, UsageError, may_have_happened
from .spec import Stats

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from typing import Self

    from .decision import Decision
    from .engines.base import Engine
    from .renewal import Renewer
    from .spec import Spec

RESERVATION_TTL = 600.0
SLOT_TTL = 30.0
MAX_RESERVATION_TTL = 86_400.0

NOT_SETTLED = "a reservation of %r could not be settled, and its estimate stays charged: %s"
NOT_RELEASED = "a slot of %r could not be let go, and expires by itself: %s"


class ReservationSpec:
    """A cost that is charged now and settled later; what sync and async share of it."""

    def __init__(self, spec: Spec, cost: int, timeout: float | None, ttl: float) -> None:
        if isinstance(ttl, bool) or not isinstance(ttl, int | float):
            raise UsageError(f"ttl is a number of seconds, not {ttl!r}", "ttl")
        if not 0.001 <= ttl <= MAX_RESERVATION_TTL:
            raise UsageError(
                f"ttl is between 0.001 and {MAX_RESERVATION_TTL:g} s, not {ttl!r}", "ttl"
            )
        self._spec = spec
        self._timeout = timeout
        self._request = spec.request(cost)._replace(reserve_us=round(ttl * 1_000_000))
        self._settled = False
        self._told: int | None = None
        self.cost = cost
        """The estimate."""
        self.decision: Decision | None = None
        """How the estimate was granted; `None` before that."""

    def _steps(self, now_us: flow.Now) -> flow.Flow:
        if self.decision is not None:
            raise UsageError("a reservation is made once; ask for another one")
        return self._spec.flow(self._request, self._timeout, now_us)

    @contextmanager
    def _settling(self, actual: int) -> Iterator[str]:
        """Around the call that settles: one that was surely not carried out can be tried again."""
        require_cost(actual)
        if self.decision is None or self.decision.token is None:
            raise UsageError("there is nothing to settle: enter the reservation with `with` first")
        if self._settled:
            raise UsageError("a reservation settles once, and this one has")
        self._told = actual
        try:
            yield self.decision.token
        except BaseException as error:
            self._settled = may_have_happened(error)
            raise
        self._settled = True

    def _cost_on_leaving(self, *, failed: bool) -> int:
        """What to settle at the end of the block: what the caller told, if it could not be passed on before."""
        if self._told is not None:
            return self._told
        return 0 if failed else self.cost

    @property
    def settled(self) -> bool:
        """Whether the real cost has been told."""
        return self._settled


class Reservation(ReservationSpec):
    """A cost that is charged now and settled later.

    Leaving the `with` block by an exception gives the estimate back; leaving it without settling keeps
    it charged. If the process dies, it stays charged. If the engine fails just then, that is logged and the
    estimate stays charged; the exception that ended the block passes.
    """

    def __init__(
        self,
        engine: Engine,
        spec: Spec,
        cost: int,
        timeout: float | None,
        ttl: float,
        *,
        logger: logging.Logger,
    ) -> None:
        super().__init__(spec, cost, timeout, ttl)
        self._engine = engine
        self._log = logger

    def acquire(self) -> Self:
        """Charge the estimate, waiting for it if the mode is blocking."""
        self.decision = run(self._steps(self._engine.clock.now_us), self._engine, self._log)
        return self

    def settle(self, actual: int) -> bool:
        """Tell the real cost: less than the estimate is refunded, more is charged even over the limit.

        False when the reservation was older than its time to live, or the key was reset since: nothing
        changes then. After an error that is not `indefinite` it can be tried again.
        """
        with self._settling(actual) as token:
            return self._engine.settle(token, actual)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._settled:
            return
        try:
            self.settle(self._cost_on_leaving(failed=kind is not None))
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, shown(self._spec.key), error)


class SlotsSpec:
    """A number of slots; what sync and async share of it."""

    def __init__(self, key: str, limit: int) -> None:
        require_key(key)
        self.key = key
        self.limit = Concurrency(limit)

    def peek(self) -> Request:
        """Ask whether a slot is free."""
        return Request((Charge(self.key, self.limit, kind=Kind.PEEK),))

    def request(self, cost: int, ttl: float) -> Request:
        """Ask for slots; the holder's name comes with each time that they are held."""
        if isinstance(ttl, bool) or not isinstance(ttl, int | float):
            raise UsageError(f"ttl is a number of seconds, not {ttl!r}", "ttl")
        low, high = MIN_TTL_US / 1_000_000, MAX_TTL_US / 1_000_000
        if not low <= ttl <= high:
            raise UsageError(f"ttl is between {low:g} and {high:g} s, not {ttl!r}", "ttl")
        limit = Concurrency(self.limit.limit, round(ttl * 1_000_000))
        if type(cost) is int and cost < 1:
            raise UsageError(f"a holder needs at least one slot, not {cost}", "cost")
        return Request((Charge(self.key, limit, cost),))


class Slots:
    """At most so many holders of a key at the same time.

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

        It is renewed while held; if the process dies, it is free again after `ttl` seconds. One object holds
        one slot at a time, and can be used again when it has let go.
        """
        request = self._spec.request(cost, ttl)
        return Slot(self._engine, request, timeout, self._renewer, self._log)

    def check(self) -> Decision:
        """Say whether a slot is free."""
        return self._engine.decide([self._spec.peek()])[0]

    def stats(self) -> Stats:
        """How many slots are held and free."""
        used, answer = self._engine.usage(self._spec.key, self._spec.limit)
        return Stats(used, self._spec.limit.limit, 0.0, answer[1])

    def reset(self) -> None:
        """Free all slots, whoever holds them."""
        self._engine.reset(self._spec.key, self._spec.limit)


class SlotSpec:
    """A slot of one holder; what sync and async share of it."""

    def __init__(self, request: Request, timeout: float | None) -> None:
        self._request = request
        self._timeout = timeout
        (charge,) = request.charges
        (limit,) = charge.limits
        assert isinstance(limit, Concurrency)
        self.key = charge.key
        self.token = ""
        """The name under which the slot is held, a new one each time, which nobody else can guess."""
        self.limit = limit
        self.lost = False
        """Whether the slot expired while it was held, so that somebody else may have it."""
        self._in_use = threading.Lock()

    def _begin(self) -> Request:
        """What to ask for this time. The same name twice would be one slot for two holders."""
        if not self._in_use.acquire(blocking=False):
            raise UsageError(
                f"this slot of {shown(self.key)!r} is held already; ask for another one with slot()"
            )
        self.token = secrets.token_hex(16)
        self.lost = False
        return self._request._replace(token=self.token)

    def _end(self) -> None:
        """From now on the object can be used again."""
        if self._in_use.locked():
            self._in_use.release()

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals: after one missed renewal the next is still in time."""
        return self.limit.ttl_us / 3_000_000


class Slot(SlotSpec):
    """A slot, held inside a `with` block and renewed until the block ends."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        timeout: float | None,
        renewer: Renewer,
        logger: logging.Logger,
    ) -> None:
        super().__init__(request, timeout)
        self._engine = engine
        self._renewer = renewer
        self._log = logger

    def renew(self) -> bool:
        """Hold on for another while; false when the slot is lost."""
        token = self.token
        held = self._engine.renew(self.key, self.limit, token)
        if (
            token != self.token
        ):  # Let go and taken again meanwhile: that answer was about another slot.
            return True
        self.lost = not held
        return held

    def __enter__(self) -> Self:
        request = self._begin()
        try:
            steps = flow.hold(request, self._timeout, self._engine.clock.now_us)
            run(steps, self._engine, self._log)
            self._renewer.add(self)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._renewer.remove(self)
        try:
            self._engine.release(self.key, self.limit, self.token)
        except HeadgateError as error:
            self._log.warning(NOT_RELEASED, shown(self.key), error)
        finally:
            self._end()
