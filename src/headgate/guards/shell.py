"""The two shells that wrap an engine with a guard: `GuardedEngine` is blocking, `AsyncGuardedEngine` async.

All methods but `bind` are written once, as in `engines/verbs.py`. Methods that need no guard are passed on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..decision import Decision
from ..engines.base import AsyncEngine, AsyncHit, Engine, Hit, Hooks, hooked
from ..engines.verbs import Verb, run, run_async, settle_each
from ..errors import EngineError
from .base import AskInstead, Guard, Redirect, Variants, cost_as_ticket
from .chores import ChoreThread, ChoreTimer
from .questions import (
    before_only,
    both_hooks,
    has_limit_of_type,
    hooks_of,
    in_front,
    plain_charge,
    remembered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..engines.base import EngineDescription, HitRun, HookedHit, Run
    from .base import HitGuard, Shortcut

H = TypeVar("H")


class _Shell(Generic[H]):
    """The common part of both shells; verbs return a result or an awaitable, as the engine's do."""

    _run: Callable[[Verb[Any]], Any]
    _chore_runner: type[ChoreThread | ChoreTimer]

    def __init__(self, engine: Engine | AsyncEngine, guard: Guard) -> None:
        self._engine: Any = engine
        self.guard = guard
        self._chores: Any = self._chore_runner(engine, guard) if guard.has_chores else None
        self.clock = engine.clock
        self._limit_type = kind = guard.limit_type
        self._past: Any = engine  # The innermost under layers for the same kind of limit.
        if kind is not None and isinstance(engine, _Shell) and engine._limit_type is kind:
            self._past = engine._past
        self._bound: dict[tuple[Limit, str | None], H] = {}
        self._redirected: dict[tuple[Limit, str | None], H] = {}

    @property
    def inner(self) -> Any:
        """The engine inside this shell, which may itself be guarded."""
        return self._engine

    @property
    def unguarded(self) -> Any:
        """See `Engine.unguarded`."""
        return self._engine.unguarded

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return cast("EngineDescription", self._engine.describe())

    def scoped(self, namespace: str) -> Self:
        """See `Engine.scoped`."""
        return type(self)(self._engine.scoped(namespace), self.guard.scoped(namespace))

    def bind(self, limit: Limit, rule: str | None = None) -> H:
        """See `Engine.bind`."""
        return remembered(self._bound, limit, rule, self._bind)

    def _bind(self, limit: Limit, rule: str | None) -> H:
        raise NotImplementedError

    def shortcut(self, limit: Limit, rule: str | None) -> Shortcut | None:
        """The shortcut of the hits of a limit, for a layer around this one that gives way to it."""
        part = self.guard.for_limit(limit, rule)
        return None if isinstance(part, Variants) else self._shortcut(part, limit, rule)

    def _shortcut(self, part: HitGuard | None, limit: Limit, rule: str | None) -> Shortcut | None:
        """The shortcut of this guard, or of the one behind it if this one gives way."""
        if part is not None and not part.gives_way:
            return part.shortcut
        inner = self._engine
        return inner.shortcut(limit, rule) if isinstance(inner, _Shell) else None

    def _picking(self, variants: Variants, rule: str | None) -> H:
        """A hit of the variant that is chosen at the moment: one extra index."""
        chosen = variants.chosen
        # The first variant is bound last: an engine may display states by the limit that was bound last.
        hits: list[Any] = [self._engine.bind(limit, rule) for limit in reversed(variants.limits)]
        hits.reverse()

        def hit(key: str, cost: int) -> Any:
            return hits[chosen.index](key, cost)

        return cast("H", hit)

    def _instead(self, found: Redirect | Decision, key: str, cost: int) -> Any:
        """The guard's own answer, or the engine's answer for the limit that the guard redirects to."""
        if isinstance(found, Decision):
            return found
        hit: Any = remembered(self._redirected, found.limit, found.rule, self._engine.bind)
        return hit(key, cost)

    def decide(self, requests: Sequence[ChargeSet]) -> Any:
        """See `Engine.decide`."""
        return self._run(self._decide(requests))

    def settle(self, token: str, actual: int | Sequence[int]) -> Any:
        """See `Engine.settle`."""
        return self._run(self._settle(token, actual))

    def settle_each(self, settlements: Sequence[tuple[str, int]]) -> Any:
        """See `SettlesTogether.settle_each`."""
        return self._run(self._settle_each(settlements))

    def withdraw(self, request: ChargeSet) -> Any:
        """See `Engine.withdraw`."""
        return self._run(self._withdraw(request))

    def leave_line(self, decision: Decision) -> Any:
        """See `Engine.leave_line`."""
        return self._run(self._leave_line(decision))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> Any:
        """See `Engine.reset`."""
        return self._run(self._reset(key, limit, rule))

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> Any:
        """See `Engine.renew`."""
        return self._engine.renew(key, limit, token, rule)

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> Any:
        """See `Engine.release`."""
        return self._engine.release(key, limit, token, rule)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Any:
        """See `Engine.usage`."""
        return self._engine.usage(key, self.guard.current_limit(limit, rule), rule)

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Any:
        """See `Engine.list_keys`."""
        return self._engine.list_keys(prefix, cursor, limit)

    def _decide(self, requests: Sequence[ChargeSet]) -> Verb[list[Decision]]:
        guard = self.guard
        if self._limit_type is not None and not has_limit_of_type(requests, self._limit_type):
            unseen: list[Decision] = yield self._past.decide(requests)
            return unseen
        found = [guard.before(request) for request in requests]
        asked = [one for one in found if not isinstance(one, Decision)]
        if not asked:
            return [one for one in found if isinstance(one, Decision)]
        try:
            decisions = yield self._engine.decide(asked)
        except EngineError as error:
            answers = [guard.failed(one, error) for one in asked]
        else:
            answers = [guard.after(*pair) for pair in zip(asked, decisions, strict=True)]
        engine_answers = iter(answers)
        return [one if isinstance(one, Decision) else next(engine_answers) for one in found]

    def _settle(self, token: str, actual: int | Sequence[int]) -> Verb[bool]:
        try:
            costs = self.guard.settling(token, actual)
            found: bool = yield self._engine.settle(token, costs)
            self.guard.closed(token)
            return found
        finally:
            self.guard.settled(token)

    def _settle_each(self, settlements: Sequence[tuple[str, int]]) -> Verb[None]:
        try:
            yield from settle_each(self._engine, settlements)
        finally:
            for token, _ in settlements:
                self.guard.settled(token)

    def _withdraw(self, request: ChargeSet) -> Verb[None]:
        try:
            yield self._engine.withdraw(request)
        finally:
            for charge in request.charges:
                self.guard.units_returned(charge.key)

    def _leave_line(self, decision: Decision) -> Verb[None]:
        try:
            yield self._engine.leave_line(decision)
        finally:
            self.guard.units_returned(decision.key)

    def _reset(self, key: str, limit: Limit, rule: str | None) -> Verb[None]:
        self.guard.resetting(key)
        try:
            yield self._engine.reset(key, limit, rule)
        finally:
            self.guard.units_returned(key)


class GuardedEngine(_Shell[Hit]):
    """A guard around a blocking engine."""

    _run = staticmethod(run)
    _chore_runner = ChoreThread

    def __init__(self, engine: Engine, guard: Guard) -> None:
        super().__init__(engine, guard)
        self.blocking = engine.blocking

    def _bind(self, limit: Limit, rule: str | None) -> Hit:
        part = self.guard.for_limit(limit, rule)
        if isinstance(part, Variants):
            return self._picking(part, rule)
        ask: Hit = self._engine.bind(limit, rule)
        if part is None:
            return ask
        if part.after is None and part.failed is None:
            hit = before_only(part.before, self._instead, ask)
        else:
            hit = self._with_hooks(part, ask)
        return in_front(self._shortcut(part, limit, rule), hit)

    def _with_hooks(self, part: HitGuard, ask: Hit) -> Hit:
        before, after, failed = part.before, part.after, part.failed
        instead = self._instead
        if before is cost_as_ticket and failed is None and after is not None:
            return lambda key, cost: after(ask(key, cost), cost)

        def hit(key: str, cost: int) -> Any:
            found: Any = before(key, cost)
            kind = type(found)
            if kind is Decision:
                return found
            if kind is Redirect:
                return instead(found, key, cost)
            if kind is AskInstead:
                answer = self._ask_instead(found)
                if answer is not None:
                    return answer
                found = found.ticket
            try:
                decision = ask(key, cost)
            except EngineError as error:
                if failed is None:
                    raise
                return failed(error, found)
            return decision if after is None else after(decision, found)

        return hit

    def _ask_instead(self, found: AskInstead) -> Decision | None:
        """Send another request instead of the hit; `None` if the guard cannot use the answer."""
        try:
            (decision,) = self._engine.decide([found.request])
        except BaseException:
            found.failed()
            self._chores.start()
            raise
        answer = found.answered(decision)
        self._chores.start()
        return answer

    def bind_run(self, limit: Limit, rule: str | None = None) -> HitRun | None:
        """See `Engine.bind_run`."""
        part = self.guard.for_limit(limit, rule)
        if isinstance(part, Variants):
            return self._picking_run(part, rule)
        hit_run: HitRun | None = self._engine.bind_run(limit, rule)
        if part is None or hit_run is None:
            return hit_run
        passes = part.passes
        if passes is None:
            return None

        def guarded_run(keys: Sequence[str], cost: int) -> Run | None:
            return hit_run(keys, cost) if passes(keys) else None

        return guarded_run

    def _picking_run(self, variants: Variants, rule: str | None) -> HitRun | None:
        """`_picking` for several keys at once."""
        chosen = variants.chosen
        runs = [self._engine.bind_run(limit, rule) for limit in variants.limits]
        if None in runs:
            return None

        def picking_run(keys: Sequence[str], cost: int) -> Run | None:
            taken: Run | None = runs[chosen.index](keys, cost)
            return taken

        return picking_run

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""
        if self._limit_type is not None and not has_limit_of_type(requests, self._limit_type):
            unseen: list[Decision] = self._past.decide(requests)
            return unseen
        if len(requests) == 1 and (plain := plain_charge(requests[0])) is not None:
            key, limit, cost, rule = plain
            return [self.bind(limit, rule)(key, cost)]
        return run(self._decide(requests))

    def finish(self) -> None:
        """Run the remaining chores of all guards, and leave the engine open."""
        if self._chores is not None:
            self._chores.finish()
        if isinstance(self._engine, GuardedEngine):
            self._engine.finish()

    def close(self) -> None:
        """See `Engine.close`."""
        if self._chores is not None:
            self._chores.finish()
        self._engine.close()


class AsyncGuardedEngine(_Shell[AsyncHit]):
    """A guard around an async engine; answers of the guard itself need no turn of the event loop."""

    _run = staticmethod(run_async)
    _chore_runner = ChoreTimer
    nowait = None

    def _bind(self, limit: Limit, rule: str | None) -> AsyncHit:
        part = self.guard.for_limit(limit, rule)
        if isinstance(part, Variants):
            return self._picking(part, rule)
        if part is None:
            unguarded: AsyncHit = self._engine.bind(limit, rule)
            return unguarded
        before, instead = part.before, self._instead
        ask: Any
        if part.after is None and part.failed is None:
            ask = self._engine.bind(limit, rule)
            guarded: AsyncHit = before_only(before, instead, ask)
            return in_front(self._shortcut(part, limit, rule), guarded)
        ask = self._engine.bind_hooked(limit, rule, hooks_of(part))
        if before is cost_as_ticket:
            return lambda key, cost: ask(key, cost, cost)

        def hit(key: str, cost: int) -> Any:
            found: Any = before(key, cost)
            kind = type(found)
            if kind is Decision:
                return found
            if kind is Redirect:
                return instead(found, key, cost)
            if kind is AskInstead:
                return self._asked_instead(found, partial(ask, key, cost))
            return ask(key, cost, found)

        quick = hit if part.quick_hit is None else part.quick_hit(ask, hit)
        return in_front(self._shortcut(part, limit, rule), quick)

    async def _asked_instead(
        self,
        found: AskInstead,
        hit: Callable[[Any], Any],
        hooks: Hooks | None = None,
        ticket: Any = None,
    ) -> Decision:
        """The answer to the replacement request, or to the hit if the guard cannot use that."""
        try:
            (decision,) = await self._engine.decide([found.request])
        except BaseException as error:
            found.failed()
            self._chores.start()
            if hooks is None or hooks.failed is None or not isinstance(error, EngineError):
                raise
            return hooks.failed(error, ticket)
        answer = found.answered(decision)
        self._chores.start()
        if answer is not None:
            return answer if hooks is None else hooks.after(answer, ticket)
        asked = hit(found.ticket)
        return asked if isinstance(asked, Decision) else cast("Decision", await asked)

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """See `AsyncEngine.bind_hooked`. The engine calls the hooks of both layers, so a hit needs no task."""
        part = self.guard.for_limit(limit, rule)
        if part is None:
            unguarded: HookedHit = self._engine.bind_hooked(limit, rule, hooks)
            return unguarded
        if isinstance(part, Variants):
            return self._picking_hooked(part, rule, hooks)
        if part.after is None and part.failed is None:
            return hooked(self.bind(limit, rule), hooks)
        before, both = part.before, both_hooks(part, hooks)
        ask: HookedHit = self._engine.bind_hooked(limit, rule, both)
        instead = self._instead

        def hit(key: str, cost: int, ticket: Any) -> Any:
            try:
                found: Any = before(key, cost)
            except EngineError as error:
                if hooks.failed is None:
                    raise
                return hooks.failed(error, ticket)
            kind = type(found)
            if kind is Decision:
                return hooks.after(found, ticket)
            if kind is Redirect:
                return hooked(partial(instead, found), hooks)(key, cost, ticket)
            if kind is AskInstead:
                return self._asked_instead(
                    found, lambda own: ask(key, cost, (own, ticket)), hooks, ticket
                )
            return ask(key, cost, (found, ticket))

        return hit if part.quick_hooked_hit is None else part.quick_hooked_hit(ask, hit)

    def _picking_hooked(self, variants: Variants, rule: str | None, hooks: Hooks) -> HookedHit:
        """`_picking` with hooks."""
        chosen = variants.chosen
        bound = [self._engine.bind_hooked(limit, rule, hooks) for limit in variants.limits]

        def picking(key: str, cost: int, ticket: Any) -> Any:
            return bound[chosen.index](key, cost, ticket)

        return picking

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""
        if len(requests) == 1 and (plain := plain_charge(requests[0])) is not None:
            key, limit, cost, rule = plain
            answer = self.bind(limit, rule)(key, cost)
            return [answer if isinstance(answer, Decision) else await answer]
        return await run_async(self._decide(requests))

    async def finish(self) -> None:
        """Run the remaining chores of all guards, and leave the engine open."""
        if self._chores is not None:
            await self._chores.finish()
        if isinstance(self._engine, AsyncGuardedEngine):
            await self._engine.finish()

    async def aclose(self) -> None:
        """See `Engine.close`."""
        if self._chores is not None:
            await self._chores.finish()
        await self._engine.aclose()
