"""The contract of an engine.

An engine stores states and makes each step atomic; it does no arithmetic. Its main method is **decide these requests,
each of them all or nothing.** For a request that means:

- every charge is evaluated at one moment of the engine's own clock, in the order given, and a charge
  sees what earlier charges of the same request would have taken;
- if all fit, all are charged; if one does not, nothing is charged anywhere (only an algorithm that
  counts denials notes the denial), and the other answers say what they would have been;
- a request that would be denied even if none of its keys had ever been used is denied as `NEVER`: charges of the same
  key may add up to more than its limit allows;
- a reservation can be settled even if it took 0 units: the real cost is charged then;
- requests of one call are decided in order, but other callers' requests may come in between.

The same requests at the same times get the same answers from every engine. The suite in `headgate.testing` verifies
this; an engine that passes it is done.

`AsyncEngine` is the same contract for asyncio. An engine without I/O implements the first, and `Awaited` turns it into
the second.

**The fast path** is part of the contract, and every layer around an engine passes it on. Most requests are hits: one
charge of one limit. A caller binds the limit once and calls the result:

- `bind(limit, rule)` gives a function `(key, cost) -> Decision`. The one of an `AsyncEngine` may return something to
  await instead.
- `bind_run(limit, rule)` gives a function that takes hits of several keys in one call, or `None`. That function may
  also return `None`: then nothing was taken, and each hit has to be made separately.
- `AsyncEngine.bind_hooked(limit, rule, hooks)` is for layers that see every answer. Its function takes a ticket with
  each hit, and the engine calls the hooks with that ticket before the caller gets the answer. A batch of answers needs
  no callback and no task for each.
- `AsyncEngine.nowait` is the engine without awaiting, if its calls never block; else `None`.
- `unguarded` is the engine behind all layers.

Two more parts are optional: see `optional.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)

from ..algorithms import NEVER
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import require_text
from ..decision import Context, Decision
from ..errors import EngineError

if TYPE_CHECKING:
    from typing import Self

    from ..algorithms import Answer, Limit
    from ..charge import ChargeSet
    from ..clock import Clock
    from .meter import Meter

P = ParamSpec("P")
R = TypeVar("R")

Hit: TypeAlias = Callable[[str, int], Decision]
"""`(key, cost) -> decision`, for one limit: the fast path."""

AsyncHit: TypeAlias = Callable[[str, int], Decision | Awaitable[Decision]]
"""The same; an engine that can answer without I/O does not make the caller wait."""


class Run(NamedTuple):
    """Hits of several keys on one limit, one after the other: the parts of their decisions, side by side.

    Their common parts are stored once, so that code that reports or counts them reads those once.
    """

    keys: Sequence[str]
    limit: Limit
    answers: list[Answer]
    context: Context
    degraded: Sequence[int] = ()
    """Which of them are degraded, by their place; the context is that of the others."""

    def decisions(self) -> list[Decision]:
        """The same, one by one."""
        keys, limit, answers, context, degraded = self
        contexts = [context] * len(answers)
        for place in degraded:
            contexts[place] = context._replace(degraded=True)
        parts = zip(keys, repeat(limit), answers, contexts, strict=False)  # `repeat` has no end.
        return list(starmap(Decision, parts))


HitRun: TypeAlias = Callable[[Sequence[str], int], Run | None]
"""`(keys, cost) -> run`: what `Hit` does for one key, for several in order; `None` if each needs its own hit."""

CertainRun: TypeAlias = Callable[[Sequence[str], int], Run]
"""The same, of an engine that can always take them in one go."""


class Hooks(NamedTuple):
    """How a layer handles the outcome of a hit. The engine calls it before the caller gets the outcome."""

    after: Callable[[Decision, Any], Decision]
    """`(decision, ticket) -> decision`: the answer that the caller gets."""
    failed: Callable[[Exception, Any], Decision] | None = None
    """`(error, ticket) -> decision`, or raises the caller's error. Without it, the caller gets the error itself."""
    may_skip: Callable[[], bool] | None = None
    """Whether `after` has nothing to do at the moment for hits that are allowed: it would return the decision as it is.
    An engine that answers many hits together asks once, and leaves it out until the first denial."""


HookedHit: TypeAlias = Callable[[str, int, Any], Decision | Awaitable[Decision]]
"""`AsyncHit` with a ticket, which the hooks are called with."""


class Usage(NamedTuple):
    """What one key has used of one limit, and what the answer to taking one unit would be."""

    used: int
    answer: Answer

    @property
    def in_use(self) -> bool:
        """Whether the key has a state, even if only because it was denied."""
        return self.answer[3] > 0


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key that an engine keeps a state for."""

    key: str
    rule: str | None
    algorithm: str
    window_us: int
    count: int
    idle_at_us: int
    limit: int
    """The number of the limit that was last used with this state; one state may serve several limits."""
    limit_known: bool = True
    """Whether it was that one. Where keys of the same rule, algorithm and window are counted with several limits, the
    memory engine knows the last of these, but not whose it was; the count may depend on it, too."""


class KeyPage(NamedTuple):
    """Some entries, and the cursor that asks for the next ones; empty when there are no more."""

    entries: list[KeyEntry]
    cursor: str


def require_page(prefix: object, cursor: object, limit: object) -> None:
    """Validate a listing's arguments: a page has at least one entry, and the rest are strings."""
    require_text("prefix", prefix)
    require_text("cursor", cursor)
    require_whole("limit", limit, 1, MAX_EXACT)


class BoardPlace(NamedTuple):
    """Where those who share the store of an engine can meet: on a board beside it."""

    module: str
    """The board's module; its `open_store_beside` makes the store of one."""
    options: Any
    """How the engine reaches its store."""
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """An engine's description of itself."""

    store: str
    """The kind of store, in one word."""
    shared: bool
    """Whether processes that use the same store share their counts."""
    promise: str
    """What it promises about counting, in one line."""
    when_lost: tuple[str, str]
    """What can lose counts, and what happens then, in one line."""
    round_trips: bool = False
    """Whether a request costs a round trip, so that it is worth answering some locally."""
    deny_cache: bool = False
    """Whether denials may be cached in front of it."""
    meter: Meter | None = None
    """Statistics of its work, if it has any."""
    deadline: float | None = None
    """Seconds after which it gives up on a decision, if it does."""
    refuses: Callable[[Limit], str | None] | None = None
    """Why it cannot keep a limit, in words that follow a colon; `None` if it keeps all of them."""
    in_part: Callable[[], bool] | None = None
    """Whether some servers of the store answer, so that a failure is about the keys of others; `None` if it has one."""
    event_loops: Literal["any", "each", "one"] = "any"
    """What it has to do with event loops: nothing, connections for each (closed one by one), or it lives in one."""
    board: BoardPlace | None = None
    """Where others who use the same store and namespace are met, if they can be."""


class Engine(Protocol):
    """Where states live. All methods are safe to call from several threads."""

    clock: Clock
    """The clock that waiting callers sleep by; an engine whose store has a clock decides by that one."""

    blocking: bool
    """Whether a call may block, so that an event loop must not make it directly."""

    def scoped(self, namespace: str) -> Self:
        """The same engine with another namespace, whose keys are independent."""

    @property
    def unguarded(self) -> Engine:
        """The engine behind all guards; this one, if there are none."""

    def describe(self) -> EngineDescription:
        """What kind of engine this is, and what it promises."""

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of one limit: a faster `decide`."""

    def bind_run(self, limit: Limit, rule: str | None = None) -> HitRun | None:
        """`bind` for several keys in one call; `None` if the engine does not support it."""

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """Decide each request, all or nothing."""

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """Settle a reservation at its real cost, once; false if it does not exist or has expired.

        `actual` is one number for all of its charges, or one for each, in their order.
        """

    def withdraw(self, request: ChargeSet) -> None:
        """Give back what the request with this token reserved. If the request is still in flight, it takes nothing.

        For callers that were interrupted and do not know the outcome.
        """

    def leave_line(self, decision: Decision) -> None:
        """Give up a place in line; it is given back once no caller is left behind it."""

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Renew slots; false when they have expired."""

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Release slots; a token that holds none is ignored."""

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """Keys in use, a page at a time; those that stay in use throughout are all seen."""

    def close(self) -> None:
        """Close everything the engine holds open."""


class AsyncEngine(Protocol):
    """`Engine`, awaited."""

    clock: Clock

    @property
    def nowait(self) -> Engine | None:
        """The same engine without awaiting, if its calls never block."""

    @property
    def unguarded(self) -> Engine | AsyncEngine:
        """See `Engine.unguarded`."""

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""

    def scoped(self, namespace: str) -> Self:
        """See `Engine.scoped`."""

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """`bind`, with hooks that see each outcome, and the ticket that came with the hit, before the caller does."""

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""

    async def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """See `Engine.settle`."""

    async def withdraw(self, request: ChargeSet) -> None:
        """See `Engine.withdraw`."""

    async def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """See `Engine.list_keys`."""

    async def aclose(self) -> None:
        """See `Engine.close`."""


def _awaited(
    verb: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Awaited, P], Coroutine[Any, Any, R]]:
    """A verb of `Engine` as `AsyncEngine` has it."""
    name = verb.__name__

    async def awaited(self: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call: Callable[P, R] = getattr(self._engine, name)
        if self._in_threads:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)

    awaited.__name__, awaited.__doc__ = name, f"See `Engine.{name}`."
    return awaited


class Awaited:
    """An `Engine` in the shape of an `AsyncEngine`: one that never blocks, or one that may, in threads."""

    def __init__(self, engine: Engine, *, in_threads: bool = False) -> None:
        self._engine = engine
        self._in_threads = in_threads
        self.clock = engine.clock

    @property
    def nowait(self) -> Engine | None:
        """The engine itself, if its calls never block: then no coroutine is needed."""
        return None if self._in_threads else self._engine

    @property
    def unguarded(self) -> Engine:
        """See `Engine.unguarded`."""
        return self._engine.unguarded

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return self._engine.describe()

    def scoped(self, namespace: str) -> Awaited:
        """See `Engine.scoped`."""
        return Awaited(self._engine.scoped(namespace), in_threads=self._in_threads)

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""
        hit = self._engine.bind(limit, rule)
        return (lambda key, cost: asyncio.to_thread(hit, key, cost)) if self._in_threads else hit

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """See `AsyncEngine.bind_hooked`."""
        return hooked(self.bind(limit, rule), hooks)

    decide = _awaited(Engine.decide)
    settle = _awaited(Engine.settle)
    withdraw = _awaited(Engine.withdraw)
    leave_line = _awaited(Engine.leave_line)
    renew = _awaited(Engine.renew)
    release = _awaited(Engine.release)
    usage = _awaited(Engine.usage)
    reset = _awaited(Engine.reset)
    list_keys = _awaited(Engine.list_keys)
    aclose = _awaited(Engine.close)


def hooked(hit: AsyncHit, hooks: Hooks) -> HookedHit:
    """`bind_hooked` for engines and layers that have nothing faster."""
    after, failed, _ = hooks

    async def later(answer: Awaitable[Decision], ticket: Any) -> Decision:
        try:
            decision = await answer
        except EngineError as error:
            if failed is None:
                raise
            return failed(error, ticket)
        return after(decision, ticket)

    def hooked_hit(key: str, cost: int, ticket: Any) -> Decision | Awaitable[Decision]:
        try:
            answer = hit(key, cost)
        except EngineError as error:
            if failed is None:
                raise
            return failed(error, ticket)
        return after(answer, ticket) if isinstance(answer, Decision) else later(answer, ticket)

    return hooked_hit


def combined(decisions: Sequence[Decision], **context: Any) -> Decision:
    """One decision for a request of several charges.

    It is the answer of the most restrictive limit: among those that deny, the one with the longest wait; else the one
    with the least left. Shadows are reported, but never decide.
    """
    binding = decisions[0]
    degraded = binding.context.degraded
    for one in decisions[1:]:
        if _matters_more(one, binding):
            binding = one
        degraded = degraded or one.context.degraded
    several = tuple(decisions) if len(decisions) > 1 else ()
    if not (several or context):
        return binding
    own = binding.context
    wanted = {"degraded": degraded, "token": None, "mark": None, **context}
    if any(getattr(own, name) != value for name, value in wanted.items()):
        own = own._replace(**wanted)
    return Decision(binding.key, binding.limited_by, binding.answer, own, several)


def _matters_more(one: Decision, than: Decision) -> bool:
    """Whether `one` is more restrictive than `than`."""
    answer, other = one.answer, than.answer
    if one.source == "shadow" or than.source == "shadow":
        return one.source != "shadow"
    if answer[0] and other[0]:
        return answer[1] < other[1]
    if answer[0] or other[0]:
        return other[0]
    return other[2] != NEVER and (answer[2] == NEVER or answer[2] > other[2])
