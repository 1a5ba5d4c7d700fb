"""Checks: a question of the check API becomes a decision, or the promise of one.

What a check names (limit, window, algorithm, burst) is looked up once and bound to the engine; after that a check is a dict lookup
and a call. An engine that needs no I/O answers at once; one that does returns a future, and no task is made for it.

Checks of a batch that differ in their keys only are a run: an engine in this process takes it in one go, and all that they have in
common is looked up, told and counted once. The answers are those of the checks one by one.

What people have set on the board comes first: a banned key is denied without asking the engine, and a limit for one key takes
the place of whatever the check names.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import UNSET

from ..algorithms import ALGORITHMS, NEVER, Concurrency
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import Charge, Kind, Request, require_key
from ..decision import Context, Decision
from ..engines.base import Awaited
from ..engines.memory import MemoryEngine
from ..errors import UsageError
from ..held import RESERVATION_TTL, SlotsSpec
from ..rate import WITH_BURST, Rate, limits_of
from .problems import BAD_VALUE, ProblemError
from .wire import SHORT_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from ..algorithms import Limit
    from ..engines.base import AsyncEngine, AsyncHit, HitRun, Run
    from .batches import Alike
    from .node import Ban, Node
    from .settings import Settings
    from .wire import Acquire, Limited, Release, Reserve, Settle, Spec

MAX_BOUND: Final = 10_000
MAX_WINDOWS: Final = 10_000
"""How many windows and algorithms may be in use, as long as counts are kept in this process."""
TELL_EVERY: Final = 60.0
"""Seconds between lines in the log that say the same."""
MAX_TTL: Final = 86_400.0
BANNED: Final = Context(source="ban")

Outcome: TypeAlias = "Decision | Awaitable[Decision]"


class Bound(NamedTuple):
    """How checks that name the same things are counted."""

    hit: AsyncHit
    limit: Limit
    hit_run: HitRun | None = None
    """The same for several keys in one go, where the engine has that."""


class Checks:
    """The check API of one node, free of HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._engine = node.limiter.engine
        self._bound: dict[Spec, Bound] = {}
        self._memory = _memory_of(self._engine)
        self._log = logging.getLogger("headgate.service")
        self._told = -TELL_EVERY
        self._bound_for_key: dict[Limit, AsyncHit] = {}

    def take(self, check: Limited) -> Outcome:
        """Take the units that a check asks for, unless people have said otherwise."""
        spec = (check.limit, check.window, check.algorithm, check.burst)
        bound = self._bound.get(spec)
        if bound is None:
            bound = self._bind(spec)
        key, cost = check.key, check.cost
        if cost is UNSET:
            cost = 1
        if not 0 < len(key) <= SHORT_KEY:
            require_key(key)
        view = self._node.board.view
        if view.bans or view.limits:
            return self._take_as_set(key, bound, cost)
        return bound.hit(key, cost)

    def take_run(self, alike: Alike) -> Sequence[Run | Decision] | None:
        """Take for checks that differ in their keys only, one after the other; `None` if each must be taken for itself.

        That is so where the engine does I/O, where checks like these are new, and where people have set something for one of the keys.
        """
        check, keys = alike
        bound = self._bound.get((check.limit, check.window, check.algorithm, check.burst))
        if bound is None or bound.hit_run is None:
            return None
        view = self._node.board.view
        for what_is_set in (view.bans, view.limits):
            if what_is_set and not what_is_set.keys().isdisjoint(keys):
                return None
        run = bound.hit_run(keys, 1 if check.cost is UNSET else check.cost)
        return run.decisions() if run.degraded else (run,)

    def _take_as_set(self, key: str, bound: Bound, cost: int) -> Outcome:
        """The same, when there is something on the board."""
        view = self._node.board.view
        ban = view.bans.get(key)
        if ban is not None and (denied := self._denied(key, bound.limit, ban)) is not None:
            return denied
        limit = view.limits.get(key)
        return (bound.hit if limit is None else self._hit_for_key(limit))(key, cost)

    def banned(self, charges: Iterable[Charge]) -> Decision | None:
        """The denial of a request that rules count for a banned key; `None` if they count it for nobody who is."""
        bans = self._node.board.view.bans
        for charge in charges:
            ban = None if charge.kind is Kind.SHADOW else bans.get(charge.key)
            if ban is None:
                continue
            denied = self._denied(charge.key, charge.limits[0], ban)
            if denied is not None:
                return denied
        return None

    def reason(self, decision: Decision) -> str | None:
        """Why a key is banned, if that is what the decision is about."""
        if decision.context is not BANNED:
            return None
        ban = self._node.board.view.bans.get(decision.key)
        return None if ban is None else ban.reason

    async def reserve(self, body: Reserve) -> Decision:
        """Charge an estimate, to be settled later."""
        cost = 1 if body.cost is UNSET else body.cost
        ttl = RESERVATION_TTL if body.ttl is UNSET else body.ttl
        if not 0.001 <= ttl <= MAX_TTL:
            raise UsageError(f"ttl is between 0.001 and {MAX_TTL:g} s, not {ttl!r}", "ttl")
        require_key(body.key)
        limit = self._bind((body.limit, body.window, body.algorithm, body.burst)).limit
        view = self._node.board.view
        ban = view.bans.get(body.key)
        if ban is not None and (denied := self._denied(body.key, limit, ban)) is not None:
            return denied
        charge = Charge(body.key, view.limits.get(body.key, limit), cost)
        request = Request((charge,), reserve_us=round(ttl * 1_000_000))
        return (await self._engine.decide([request]))[0]

    async def settle(self, body: Settle) -> bool:
        """Tell what a reservation really cost; false when there is none any more."""
        require_token(body.token)
        require_whole("actual", body.actual, 0, MAX_EXACT)
        return await self._engine.settle(body.token, body.actual)

    async def acquire(self, body: Acquire) -> Decision:
        """Hold a slot; with the token of one that is held, hold on to it."""
        token = secrets.token_hex(16) if body.token is UNSET else body.token
        require_token(token)
        request = SlotsSpec(body.key, body.limit).request(body.cost, body.ttl)
        ban = self._node.board.view.bans.get(body.key)
        (charge,) = request.charges
        if ban is not None:
            denied = self._denied(body.key, charge.limits[0], ban)
            if denied is not None:
                return denied
        return (await self._engine.decide([request._replace(token=token)]))[0]

    async def release(self, body: Release) -> None:
        """Let go of a slot; one that is not held is let go of already."""
        require_key(body.key)
        require_token(body.token)
        await self._engine.release(body.key, Concurrency(1), body.token)

    def _bind(self, spec: Spec) -> Bound:
        """How checks that name this are counted; refused if nobody could."""
        known = self._bound.get(spec)
        if known is not None:
            return known
        limit = limit_of(self._node.settings, spec)
        if self._memory is not None:
            self._require_room(self._memory, limit)
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        in_one_go = self._engine.bind_run(limit) if isinstance(self._engine, Awaited) else None
        bound = self._bound[spec] = Bound(self._engine.bind(limit), limit, in_one_go)
        return bound

    def _require_room(self, memory: MemoryEngine, limit: Limit) -> None:
        """Refuse to begin yet another window while so many are in use: callers choose them. Checks that name none are never refused."""
        if limit.identity == self._node.default_limit.identity:
            return
        if memory.has_room_for(limit, MAX_WINDOWS):
            return
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            self._log.warning("checks are refused: callers use %d different windows", MAX_WINDOWS)
        raise ProblemError(
            BAD_VALUE,
            f"this service counts in {MAX_WINDOWS} different windows already; use one of those, wait until some are over, "
            "or use an engine that shares its counts",
            pointer="#/window",
        )

    def _hit_for_key(self, limit: Limit) -> AsyncHit:
        hit = self._bound_for_key.get(limit)
        if hit is None:
            if len(self._bound_for_key) >= MAX_BOUND:
                self._bound_for_key.clear()
            hit = self._bound_for_key[limit] = self._engine.bind(limit)
        return hit

    def _denied(self, key: str, limit: Limit, ban: Ban) -> Decision | None:
        """The answer for a banned key; `None` when the ban is over."""
        left_us = NEVER
        if ban.until_us is not None:
            left_us = ban.until_us - self._node.board.now_us()
            if left_us <= 0:
                return None
        return Decision(key, limit, (False, 0, left_us, max(0, left_us), 0), BANNED)


def _memory_of(engine: AsyncEngine) -> MemoryEngine | None:
    """The engine, if it counts in this process."""
    inner = engine.inner if isinstance(engine, Awaited) else engine
    return inner if isinstance(inner, MemoryEngine) else None


def limit_of(settings: Settings, spec: Spec) -> Limit:
    """The limit that a check names; what it leaves out is as the settings say."""
    limit, window, algorithm, burst = spec
    if algorithm is UNSET:
        # The default algorithm may have no burst; one who names a burst means a bucket.
        default = settings.default_algorithm
        algorithm = default if burst is UNSET or default in WITH_BURST else "token_bucket"
    elif algorithm == Concurrency.name or algorithm not in ALGORITHMS:
        names = ", ".join(sorted(set(ALGORITHMS) - {Concurrency.name}))
        raise ProblemError(
            BAD_VALUE,
            f"no algorithm of checks is called {algorithm[:60]!r}; there are {names}",
            pointer="#/algorithm",
        )
    rate = Rate(
        settings.default_limit if limit is UNSET else limit,
        settings.default_window if window is UNSET else window,
        None if burst is UNSET else burst,
    )
    return limits_of(rate, algorithm)[0]


def require_token(token: str) -> None:
    """Refuse tokens that no engine has made."""
    if not token or len(token) > 256 or not token.isascii() or not token.isprintable():
        raise UsageError("a token is what an earlier answer gave as 'token', unchanged", "token")


def usage_problem(error: UsageError) -> ProblemError:
    """What the library says about an argument, as a problem that points to the field."""
    pointer = None if error.argument is None else f"#/{error.argument}"
    return ProblemError(BAD_VALUE, str(error), pointer=pointer)
