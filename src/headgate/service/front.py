"""Front: what the service does for its callers, independent of any wire format.

It is called by HTTP, and by every other protocol that the service speaks.

A call returns its decision, or a `Pending` if the engine does I/O: a future to wait for, without a task. Whatever is
decided here is recorded here, including failures of the store.

The parameters of a check (limit, window, algorithm, burst) are looked up once and bound to the engine; after that a
check is a dict lookup and a call. Checks of a batch that differ only in their keys form a run: an engine in this
process takes it in one call, and what they have in common is looked up and counted once. The answers are the same as
for separate checks.

Per-key settings are not handled here: the limiter's guards apply them (`guards/key_settings.py`) to every call.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import contextmanager
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..algorithms import ALGORITHMS, Concurrency, TokenBucket
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import MAX_KEY_BYTES, Charge, ChargeSet, require_key
from ..decision import Decision
from ..engines.base import Run
from ..errors import EngineError, HeadgateError, UsageError
from ..held import RESERVATION_TTL, SlotsSpec
from ..rate import Rate, limits_of
from ..rule_decisions import BAD_PATH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ..algorithms import Limit
    from ..engines.base import AsyncEngine, AsyncHit, HitRun
    from ..rules.request import Request
    from .node import Node
    from .settings import Settings

MAX_BOUND: Final = 10_000
MAX_TTL: Final = 86_400.0
SLOT_TTL: Final = 30.0
"""The default time to live of a slot, in seconds."""
SHORT_KEY: Final = MAX_KEY_BYTES // 4
"""A key of this many characters always fits into the byte limit."""
PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9/_.~-]{0,1000}")
"""Paths that are known to be valid without further checks."""

Spec: TypeAlias = tuple[int | UnsetType, float | UnsetType, str | UnsetType, int | UnsetType]
"""`(limit, window, algorithm, burst)` of a check: what decides how it is counted."""

Answered: TypeAlias = "Decision | Awaitable[Decision]"
T = TypeVar("T")


class Check(msgspec.Struct, gc=False):
    """A key and a limit. Missing fields are taken from the settings; the cost is 1 by default."""

    key: str
    limit: int | UnsetType = UNSET
    window: int | float | UnsetType = UNSET
    algorithm: str | UnsetType = UNSET
    burst: int | UnsetType = UNSET
    cost: int | UnsetType = UNSET


class CheckRun(NamedTuple):
    """Two or more consecutive checks that differ only in their keys. Keys and cost are valid."""

    check: Check
    """The first of them; the others have the same parameters."""
    keys: list[str]

    def one_by_one(self) -> Iterator[Check]:
        """The same checks, one by one."""
        check = self.check
        asked = (check.limit, check.window, check.algorithm, check.burst, check.cost)
        return map(Check, self.keys, *map(repeat, asked))


BatchItem: TypeAlias = "Check | CheckRun | Exception"
"""A part of a batch: checks, or the error in one."""
BatchResult: TypeAlias = "list[Run | Decision | Exception]"
"""The results of a batch, in order: decisions, or the error of a check."""


class Pending(NamedTuple, Generic[T]):
    """An answer that is not there yet: when `future` is done, `result` returns it, or raises.

    Call `result` once.
    """

    future: asyncio.Future[Any]
    result: Callable[[], T]


class BoundCheck(NamedTuple):
    """How checks with the same parameters are counted."""

    hit: AsyncHit
    limit: Limit
    hit_run: HitRun | None = None
    """The same for several keys in one call, if the engine supports it."""


class Front:
    """What a node does for its callers.

    `began_ns` is when work on the caller's request began, by `perf_counter_ns`; recorded times count from there.
    Invalid arguments raise `UsageError`, a store that does not answer `EngineError`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._engine = node.limiter.engine
        self._recorder = node.recorder
        self._store = node.store
        self._denies_bad_paths = node.settings.bad_paths == "deny"
        self._bound: dict[Spec, BoundCheck] = {}

    # Checks

    def check(self, check: Check, began_ns: int) -> Decision | Pending[Decision]:
        """Take the units that a check asks for."""
        try:
            decision = self._taken(check)
        except EngineError as error:
            self._failed(error)
            raise
        if isinstance(decision, Decision):
            self._recorder.record(decision, perf_counter_ns() - began_ns)
            if not self._store.up:
                self._store.decided(decision)
            return decision
        return self._pending(decision, began_ns)

    def check_batch(
        self, items: Sequence[BatchItem], began_ns: int
    ) -> BatchResult | Pending[BatchResult]:
        """Each check separately, in order; an error in one is returned at its position."""
        outcomes: list[Any] = []
        for item in items:
            if isinstance(item, CheckRun):
                run = self._taken_run(item)
                outcomes.extend(map(self._tried, item.one_by_one()) if run is None else run)
            else:
                outcomes.append(self._tried(item))
        return self.collect(outcomes, began_ns)

    def collect(self, outcomes: list[Any], began_ns: int) -> BatchResult | Pending[BatchResult]:
        """Record the results of a batch: runs, decisions, futures of decisions, and errors.

        For protocols that call the engine themselves; see `engine`.
        """
        waiting = [one for one in outcomes if isinstance(one, asyncio.Future)]
        if waiting:
            return Pending(_all_done(waiting), lambda: self._batch_result(outcomes, began_ns))
        return self._batch_result(outcomes, began_ns)

    @property
    def engine(self) -> AsyncEngine:
        """The engine with all guards around it, for requests with their own limits."""
        return self._engine

    def _taken(self, check: Check) -> Answered:
        spec = (check.limit, check.window, check.algorithm, check.burst)
        bound = self._bound.get(spec)
        if bound is None:
            bound = self._bind(spec)
        key, cost = check.key, check.cost
        if cost is UNSET:
            cost = 1
        if not 0 < len(key) <= SHORT_KEY:
            require_key(key)
        return bound.hit(key, cost)

    def _tried(self, item: Check | Exception) -> Decision | asyncio.Future[Decision] | Exception:
        """The result of one item of a batch: a decision, now or later, or an error."""
        if isinstance(item, Exception):
            return item
        try:
            outcome = self._taken(item)
        except HeadgateError as error:
            return error
        return outcome if isinstance(outcome, Decision) else _future_of(outcome)

    def _taken_run(self, run: CheckRun) -> Sequence[Run | Decision] | None:
        """Take a run in one call; `None` if its checks must be taken separately.

        That is so if the engine does I/O, if such checks are new, or if one of the keys has its own settings.
        """
        check, keys = run
        bound = self._bound.get((check.limit, check.window, check.algorithm, check.burst))
        if bound is None or bound.hit_run is None:
            return None
        taken = bound.hit_run(keys, 1 if check.cost is UNSET else check.cost)
        if taken is None:
            return None
        return taken.decisions() if taken.degraded else (taken,)

    def _batch_result(self, outcomes: list[Any], began_ns: int) -> BatchResult:
        """The results in order; each decision is recorded with its share of the time."""
        recorder, store = self._recorder, self._store
        many = sum(len(one.keys) if isinstance(one, Run) else 1 for one in outcomes)
        share_ns = (perf_counter_ns() - began_ns) // many
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, Run):
                recorder.record_run(outcome, share_ns)
                continue
            try:
                decision = outcome if isinstance(outcome, Decision) else _result(outcome)
            except Exception as error:  # noqa: BLE001 - any error is returned at its position
                self._failed(error)
                outcomes[place] = error
                continue
            outcomes[place] = decision
            recorder.record(decision, share_ns)
            if not store.up:
                store.decided(decision)
        return outcomes

    # Rules

    def decide(self, request: Request, began_ns: int) -> Decision | Pending[Decision]:
        """Apply the rules to a request.

        A path that cannot be parsed is denied, or with the setting `bad_paths` only reported as the reason.
        """
        refused = None if PLAIN_PATH.fullmatch(request.path) else request.path_refused
        if refused is not None and self._denies_bad_paths:
            return self._recorded(BAD_PATH, began_ns, refused)
        try:
            decision = self._node.limiter.decide_request_nowait(request)
        except EngineError as error:
            self._failed(error)
            raise
        if isinstance(decision, Decision):
            return self._recorded(decision, began_ns, refused)
        return self._pending(decision, began_ns, refused)

    # Reservations and slots

    async def reserve(
        self, check: Check, began_ns: int, *, ttl: float = RESERVATION_TTL
    ) -> Decision:
        """Charge an estimate, to be settled later; after `ttl` seconds it is final."""
        cost = 1 if check.cost is UNSET else check.cost
        if not 0.001 <= ttl <= MAX_TTL:
            raise UsageError(f"ttl must be between 0.001 and {MAX_TTL:g} s, not {ttl!r}", "ttl")
        require_key(check.key)
        limit = self._bind((check.limit, check.window, check.algorithm, check.burst)).limit
        charge = Charge(check.key, limit, cost)
        return await self._decided(
            ChargeSet((charge,), reserve_us=round(ttl * 1_000_000)), began_ns
        )

    async def settle(self, token: str, actual: int) -> bool:
        """Correct a reservation to its actual cost; false if it does not exist any more."""
        require_token(token)
        require_whole("actual", actual, 0, MAX_EXACT)
        with self._watching():
            return await self._engine.settle(token, actual)

    async def acquire(
        self,
        key: str,
        limit: int,
        began_ns: int,
        *,
        cost: int = 1,
        ttl: float = SLOT_TTL,
        token: str | None = None,
    ) -> Decision:
        """Hold a slot for `ttl` seconds; with the token of a held slot, renew it."""
        named = secrets.token_hex(16) if token is None else token
        require_token(named)
        request = SlotsSpec(key, limit).request(cost, ttl)._replace(token=named)
        return await self._decided(request, began_ns)

    async def release(self, key: str, token: str) -> None:
        """Release a slot; does nothing if it is not held."""
        require_key(key)
        require_token(token)
        with self._watching():
            await self._engine.release(key, Concurrency(1), token)

    async def _decided(self, request: ChargeSet, began_ns: int) -> Decision:
        with self._watching():
            (decision,) = await self._engine.decide([request])
        return self._recorded(decision, began_ns)

    # Recording

    def _recorded(self, decision: Decision, began_ns: int, reason: str | None = None) -> Decision:
        if reason is not None and decision.context.reason is None:
            context = decision.context._replace(reason=reason)
            decision = Decision(
                decision.key, decision.limited_by, decision.answer, context, decision.several
            )
        self._recorder.record(decision, perf_counter_ns() - began_ns)
        if not self._store.up:
            self._store.decided(decision)
        return decision

    def _pending(
        self, decision: Awaitable[Decision], began_ns: int, reason: str | None = None
    ) -> Decision | Pending[Decision]:
        """The answer when it has come; or now, if the store was not asked, because too many wait for it."""
        future = _future_of(decision)

        def result() -> Decision:
            try:
                found = future.result()
            except EngineError as error:
                self._failed(error)
                raise
            return self._recorded(found, began_ns, reason)

        return result() if future.done() else Pending(future, result)

    def _failed(self, error: Exception) -> None:
        """Called when something could not be decided; records an outage."""
        if isinstance(error, EngineError):
            self._store.failed(error)
            self._recorder.record_failure(error)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            self._failed(error)
            raise

    # Limits

    def _bind(self, spec: Spec) -> BoundCheck:
        """The limit of checks with these values; invalid ones are refused."""
        known = self._bound.get(spec)
        if known is not None:
            return known
        limit = limit_of(self._node.settings, spec)
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        nowait = self._engine.nowait
        hit_run = None if nowait is None else nowait.bind_run(limit)
        bound = self._bound[spec] = BoundCheck(self._engine.bind(limit), limit, hit_run)
        return bound


def limit_of(settings: Settings, spec: Spec) -> Limit:
    """The limit of a check; missing parameters are taken from the settings."""
    limit, window, algorithm, burst = spec
    if algorithm is UNSET:
        # A burst implies a bucket: the default algorithm may have none, or not let it decide.
        algorithm = settings.default_algorithm if burst is UNSET else TokenBucket.name
    elif algorithm == Concurrency.name or algorithm not in ALGORITHMS:
        names = ", ".join(sorted(set(ALGORITHMS) - {Concurrency.name}))
        text = f"there is no algorithm {algorithm[:60]!r}; the algorithms are {names}"
        raise UsageError(text, "algorithm")
    rate = Rate(
        settings.default_limit if limit is UNSET else limit,
        settings.default_window if window is UNSET else window,
        None if burst is UNSET else burst,
    )
    return limits_of(rate, algorithm)[0]


def require_token(token: str) -> None:
    """Refuse tokens that no engine has created."""
    if not token or len(token) > 256 or not token.isascii() or not token.isprintable():
        raise UsageError("token must be the unchanged 'token' of an earlier answer", "token")


def _future_of(outcome: Awaitable[Decision]) -> asyncio.Future[Decision]:
    """A future of the outcome: usually it is one already, and needs no wrapping."""
    return outcome if isinstance(outcome, asyncio.Future) else asyncio.ensure_future(outcome)


def _all_done(waiting: list[asyncio.Future[Decision]]) -> asyncio.Future[None]:
    """A future that is done when all of these are, with any outcome."""
    left = len(waiting)
    all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_answer(_: object) -> None:
        nonlocal left
        left -= 1
        if not left and not all_done.done():
            all_done.set_result(None)

    for future in waiting:
        future.add_done_callback(on_answer)
    return all_done


def _result(outcome: Any) -> Decision:
    """The decision of a check that had to wait, or its error raised."""
    if isinstance(outcome, Exception):
        raise outcome
    found: Decision = outcome.result()
    return found
