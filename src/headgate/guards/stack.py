"""Which guards an engine gets, and in which order. Only this module decides that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import Adaptive
from ..clock import SystemClock
from ..engines.base import Awaited
from .breaker import Breaker
from .deny_cache import DenyCache
from .fallback import FallbackGuard
from .fallback_shell import AsyncFallbackEngine, FallbackEngine
from .leases import Leases
from .local_counts import LocalCounts
from .shell import AsyncGuardedEngine, GuardedEngine

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from ..engines.base import AsyncEngine, Engine
    from ..errors import EngineError
    from ..rules.model import OnError
    from .base import Guard
    from .membership import Membership

DEADLINE: Final = 1.0
"""Seconds after which the breaker counts an answer as late, if the engine does not set a deadline."""


@dataclass(frozen=True, slots=True)
class WhenStoreFails:
    """What to do when the store of an engine does not answer."""

    policy: Callable[[str | None], OnError]
    """By the rule of the request, or `None` without one."""
    members: Membership
    on_failure: Callable[[EngineError], None] | None = None
    """Called with each error."""


def own_guards(engine: Engine | AsyncEngine) -> list[Guard]:
    """The guards of an engine, according to its description.

    The deny cache comes before leases, which know how long a denial holds.
    """
    described = engine.describe()
    if not described.round_trips:
        return []
    return [DenyCache(engine.clock, remembers=described.deny_cache), *lease_guards(engine)]


def lease_guards(engine: Engine | AsyncEngine) -> list[Guard]:
    """Leases, if they save round trips to a shared store; none if the engine brings its own."""
    described = engine.describe()
    worthwhile = described.shared and described.round_trips
    return [Leases(engine.clock)] if worthwhile and leases_of(engine) is None else []


def finish(engine: Engine) -> None:
    """Run the remaining chores of an engine's guards, before others take it over."""
    if isinstance(engine, GuardedEngine):
        engine.finish()


async def finish_async(engine: AsyncEngine) -> None:
    """The same for an async engine."""
    if isinstance(engine, AsyncGuardedEngine):
        await engine.finish()


def leases_of(engine: Engine | AsyncEngine) -> Leases | None:
    """The leases among the guards of an engine."""
    around: Any = engine
    while isinstance(around, GuardedEngine | AsyncGuardedEngine):
        if isinstance(around.guard, Leases):
            return around.guard
        around = around.inner
    return None


def fallback_guards(
    engine: Engine | AsyncEngine, failing: WhenStoreFails, logger: logging.Logger
) -> list[Guard]:
    """The guards that answer when the store of an engine fails; none for an engine without a store."""
    described = engine.describe()
    if not (described.shared or described.round_trips):
        return []
    # The breaker times real calls, even when a test controls the clock.
    deadline = described.deadline
    breaker = Breaker(SystemClock(), deadline or DEADLINE, keeps_deadline=deadline is not None)
    local = LocalCounts(engine.clock, failing.members.fleet)
    return [
        FallbackGuard(
            breaker,
            local,
            failing.policy,
            members=failing.members,
            in_part=described.in_part,
            on_failure=failing.on_failure,
            logger=logger,
        )
    ]


def fallback_of(engine: Any) -> FallbackGuard | None:
    """The fallback around an engine, if there is one."""
    shell = fallback_shell_of(engine)
    guard: FallbackGuard | None = None if shell is None else shell.guard
    return guard


def fallback_shell_of(engine: Any) -> FallbackEngine | AsyncFallbackEngine | None:
    """The outermost fallback shell around an engine."""
    while engine is not None:
        if isinstance(engine, FallbackEngine | AsyncFallbackEngine):
            return engine
        engine = getattr(engine, "_engine", None)
    return None


def guarded(engine: Engine, guards: Sequence[Guard]) -> Engine:
    """An engine with guards around it; the first guard is called first."""
    for guard in reversed(guards):
        if isinstance(guard, FallbackGuard):
            engine = FallbackEngine(engine, guard)
        else:
            engine = GuardedEngine(engine, guard)
    return engine


def guarded_async(engine: AsyncEngine, guards: Sequence[Guard]) -> AsyncEngine:
    """The same for an async engine; nothing is awaited needlessly."""
    if not guards:
        return engine
    if engine.nowait is not None:
        return Awaited(guarded(engine.nowait, guards))
    for guard in reversed(guards):
        if isinstance(guard, FallbackGuard):
            engine = AsyncFallbackEngine(engine, guard)
        else:
            engine = AsyncGuardedEngine(engine, guard)
    return engine


def as_asked(engine: AsyncEngine) -> AsyncEngine:
    """The same engine without the guards that choose for adaptive limits, for callers that choose themselves.

    The layers inside are reused, so there is still one fallback and one deny cache.
    """
    nowait = engine.nowait
    return Awaited(_as_asked(nowait)) if nowait is not None else _as_asked(engine)


def _as_asked(engine: Any) -> Any:
    shells = []
    inner = engine
    while hasattr(inner, "guard"):
        shells.append(inner)
        inner = inner._engine
    choosing = [place for place, shell in enumerate(shells) if shell.guard.limit_type is Adaptive]
    if not choosing:
        return engine
    inner = shells[choosing[-1]]._engine
    for shell in reversed(shells[: choosing[-1]]):
        if shell.guard.limit_type is not Adaptive:
            inner = type(shell)(inner, shell.guard)
    return inner
