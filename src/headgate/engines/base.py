"""The contract that an engine signs.

An engine is where states live and what makes one step atomic; the arithmetic is not its business. It
has one main verb: **decide these requests, each of them all or nothing.** For a request that means:

- every charge is evaluated at one moment of the engine's own clock, in the order given, and a charge
  sees what earlier charges of the same request would have taken;
- if all fit, all are charged; if one does not, nothing is charged anywhere (only an algorithm that
  counts denials notes the denial), and the other answers say what they would have been;
- what would be denied even if no key of the request had ever been used is denied for ever (`NEVER`): charges of the
  same key may add up to more than its limit can give;
- a reservation can be settled also where it took 0 units: what was really used is charged then;
- requests of one call are decided in order, but other callers may come in between.

The same requests at the same times get the same answers from every engine. `headgate.testing` has the suite
that says so; an engine that passes it is done.

`AsyncEngine` is the same contract, awaited. An engine that needs no I/O implements the first, and
`Awaited` makes the second of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from ..algorithms import NEVER
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import require_text
from ..decision import Context, Decision

if TYPE_CHECKING:
    from typing import Self

    from ..algorithms import Answer, Limit
    from ..charge import Request
    from ..clock import Clock

P = ParamSpec("P")
R = TypeVar("R")

Hit: TypeAlias = Callable[[str, int], Decision]
"""`(key, cost) -> decision`, for one limit: the fast path."""

AsyncHit: TypeAlias = Callable[[str, int], Decision | Awaitable[Decision]]
"""The same; an engine that can answer without I/O does not make the caller wait."""


class Run(NamedTuple):
    """Hits of several keys on one limit, one after the other: the parts of their decisions, side by side.

    What they have in common is kept once, so whoever tells or counts them looks at it once.
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


HitRun: TypeAlias = Callable[[Sequence[str], int], Run]
"""`(keys, cost) -> run`: what `Hit` does for one key, for several in order."""


class Usage(NamedTuple):
    """What one key has used of one limit, and what taking one unit would be answered."""

    used: int
    answer: Answer

    @property
    def in_use(self) -> bool:
        """Whether anything is remembered of the key, be it only that it was denied."""
        return self.answer[3] > 0


@dataclass(frozen=True, slots=True)
class Entry:
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


class Page(NamedTuple):
    """Some entries, and the cursor that asks for the next ones; empty when there are no more."""

    entries: list[Entry]
    cursor: str


def require_page(prefix: object, cursor: object, limit: object) -> None:
    """Refuse to list what no engine could: a page has at least one entry, and the rest is text."""
    require_text("prefix", prefix)
    require_text("cursor", cursor)
    require_whole("limit", limit, 1, MAX_EXACT)


class Engine(Protocol):
    """Where states live. All methods are safe to call from several threads."""

    clock: Clock
    """What waiting callers sleep by; an engine whose store has a clock decides by that one."""

    blocking: bool
    """Whether a call may have to wait for somebody else, so that an event loop should not make it."""

    def scoped(self, namespace: str) -> Self:
        """The same engine under another namespace: keys of two namespaces never meet."""

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of this one limit; `decide` without the ceremony."""

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""

    def settle(self, token: str, actual: int) -> bool:
        """Correct a reservation to what was really used, once; false when there is none (any more)."""

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line that is not wanted any more, if it is the last."""

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while; false when they have expired."""

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Let go of slots; a token that holds none is ignored."""

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, a page at a time; those that stay in use throughout are all seen."""

    def close(self) -> None:
        """Let go of everything the engine holds open."""


class AsyncEngine(Protocol):
    """`Engine`, awaited."""

    clock: Clock

    def scoped(self, namespace: str) -> Self:
        """See `Engine.scoped`."""

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""

    async def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """See `Engine.decide`."""

    async def settle(self, token: str, actual: int) -> bool:
        """See `Engine.settle`."""

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

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """See `Engine.list_keys`."""

    async def aclose(self) -> None:
        """See `Engine.close`."""


class Awaited:
    """An `Engine` in the shape of an `AsyncEngine`: one that never blocks, or one that may, in threads."""

    def __init__(self, engine: Engine, *, in_threads: bool = False) -> None:
        self._engine = engine
        self._in_threads = in_threads
        self.clock = engine.clock

    @property
    def inner(self) -> Engine:
        """The engine that is asked."""
        return self._engine

    @property
    def at_once(self) -> Engine | None:
        """The engine itself, if asking it holds up nobody: no coroutine has to be paid for then."""
        return None if self._in_threads else self._engine

    def scoped(self, namespace: str) -> Awaited:
        """See `Engine.scoped`."""
        return Awaited(self._engine.scoped(namespace), in_threads=self._in_threads)

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""
        hit = self._engine.bind(limit, rule)
        return (lambda key, cost: self._do(hit, key, cost)) if self._in_threads else hit

    def bind_run(self, limit: Limit, rule: str | None = None) -> HitRun | None:
        """What answers several hits in one go, if the engine has that and asking it holds up nobody."""
        bind = getattr(self.at_once, "bind_run", None)
        made: HitRun | None = None if bind is None else bind(limit, rule)
        return made

    async def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """See `Engine.decide`."""
        return await self._do(self._engine.decide, requests)

    async def settle(self, token: str, actual: int) -> bool:
        """See `Engine.settle`."""
        return await self._do(self._engine.settle, token, actual)

    async def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""
        await self._do(self._engine.leave_line, decision)

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return await self._do(self._engine.renew, key, limit, token, rule)

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        await self._do(self._engine.release, key, limit, token, rule)

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""
        return await self._do(self._engine.usage, key, limit, rule)

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""
        await self._do(self._engine.reset, key, limit, rule)

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """See `Engine.list_keys`."""
        return await self._do(self._engine.list_keys, prefix, cursor, limit)

    async def aclose(self) -> None:
        """See `Engine.close`."""
        await self._do(self._engine.close)

    async def _do(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._in_threads:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)


def combined(decisions: Sequence[Decision], **context: Any) -> Decision:
    """One decision for a request of several charges.

    It speaks for the limit that matters most: of those that deny, the one that takes longest to let the
    request pass; else the one with the least left. Shadows are reported, but speak for nobody.
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
    """Whether `one` should speak for the request rather than `than`."""
    answer, other = one.answer, than.answer
    if one.source == "shadow" or than.source == "shadow":
        return one.source != "shadow"
    if answer[0] and other[0]:
        return answer[1] < other[1]
    if answer[0] or other[0]:
        return other[0]
    return other[2] != NEVER and (answer[2] == NEVER or answer[2] > other[2])
