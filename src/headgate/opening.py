"""Opening: from a URL, a client or an engine to an engine with its guards around it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ._openings import note_opening
from .adaptive.local import LocalAdaptive
from .engines.base import Awaited
from .engines.optional import HasDecisionDeadline
from .engines.registry import kind_for
from .errors import UsageError
from .guards.stack import fallback_guards, guarded, guarded_async, lease_guards, own_guards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .adaptive.guard import Choices
    from .algorithms import Limit
    from .clock import Clock
    from .engines.base import AsyncEngine, Engine, EngineDescription
    from .engines.registry import EngineKind
    from .guards.base import Guard
    from .guards.stack import WhenStoreFails

DEFAULT_REDIS: Final = "redis://localhost:6379/0"
DECISION_DEADLINE: Final = 0.025
"""The deadline of a decision, in seconds, if `on_error` can answer without the store; else it is a second."""


class Opened(NamedTuple):
    """An engine, and whether the caller has to close it."""

    engine: Engine
    owned: bool


class OpenedAsync(NamedTuple):
    """The same for asyncio."""

    engine: AsyncEngine
    owned: bool


def url_from_env(environ: Mapping[str, str] | None = None) -> str:
    """The engine that the environment names: `HEADGATE_ENGINE`, else `REDIS_URL`, else a local Redis."""
    found = os.environ if environ is None else environ
    return found.get("HEADGATE_ENGINE") or found.get("REDIS_URL") or DEFAULT_REDIS


def logger_of(given: object) -> logging.Logger:
    """The logger that was passed to a limiter, or ours; any object with the same methods will do."""
    if given is None:
        return logging.getLogger("headgate")
    if not all(callable(getattr(given, level, None)) for level in ("debug", "warning")):
        raise UsageError(f"a logger must be a logging.Logger, not {given!r}")
    return cast("logging.Logger", given)


def refusals_of(source: Any) -> Callable[[Limit], str | None] | None:
    """What tells why an engine cannot keep a limit, before it is opened; `None` if it keeps all of them."""
    if hasattr(source, "decide"):
        described: EngineDescription = source.describe()
        return described.refuses
    return _kind(source).describe(source).refuses if isinstance(source, str) else None


def open_engine(
    source: str | Engine | Any,
    clock: Clock | None,
    logger: logging.Logger,
    *,
    guards: Sequence[Guard],
    adaptive: Choices | None,
    failing: WhenStoreFails,
) -> Opened:
    """An engine for threads and plain functions, with its own guards around it and `guards` around those."""
    if hasattr(source, "decide"):
        ready: Engine = _with_its_clock(source, clock)
        own = _around_ready(ready, adaptive, failing, logger)
        return Opened(guarded(ready, [*guards, *own]), owned=False)
    engine = _hurried(_kind(source).open(source, clock, logger), failing)
    note_opening()
    own = _inner(engine, adaptive, failing, logger)
    return Opened(guarded(engine, [*guards, *own]), owned=True)


def open_async_engine(
    source: str | Engine | AsyncEngine | Any,
    clock: Clock | None,
    logger: logging.Logger,
    *,
    guards: Sequence[Guard],
    adaptive: Choices | None,
    failing: WhenStoreFails,
) -> OpenedAsync:
    """An engine for asyncio: one made for it, or one that never blocks, or one in threads."""
    if hasattr(source, "decide"):
        ready = _with_its_clock(source, clock)
        if not hasattr(ready, "aclose"):
            ready = Awaited(ready, in_threads=ready.blocking)
        own = _around_ready(ready, adaptive, failing, logger)
        return OpenedAsync(guarded_async(ready, [*guards, *own]), owned=False)
    engine = _hurried(_kind(source).open_async(source, clock, logger), failing)
    note_opening()
    own = _inner(engine, adaptive, failing, logger)
    return OpenedAsync(guarded_async(engine, [*guards, *own]), owned=True)


def _inner(
    engine: Engine | AsyncEngine,
    adaptive: Choices | None,
    failing: WhenStoreFails,
    logger: logging.Logger,
) -> list[Guard]:
    """The guards of an engine that is opened here, outermost first."""
    return [
        *_choosing(adaptive, engine),
        *own_guards(engine),
        *fallback_guards(engine, failing, logger),
    ]


def _around_ready(
    engine: Engine | AsyncEngine,
    adaptive: Choices | None,
    failing: WhenStoreFails,
    logger: logging.Logger,
) -> list[Guard]:
    """The guards of an engine that the caller has opened."""
    return [
        *_choosing(adaptive, engine),
        *lease_guards(engine),
        *fallback_guards(engine, failing, logger),
    ]


def _choosing(adaptive: Choices | None, engine: Engine | AsyncEngine) -> Sequence[Guard]:
    """What chooses for adaptive limits: the given object, or else the limiter itself, from its own traffic."""
    return (LocalAdaptive(clock=engine.clock) if adaptive is None else adaptive).guards()


def _hurried(engine: Any, failing: WhenStoreFails) -> Any:
    """The engine with a short deadline for decisions, if it has a store and a guard can answer for it."""
    if isinstance(engine, HasDecisionDeadline) and failing.policy(None) in {"fallback", "open"}:
        return engine.deciding_within(DECISION_DEADLINE)
    return engine


def _with_its_clock(engine: Any, clock: Clock | None) -> Any:
    if clock is not None:
        raise UsageError("an engine has its own clock; pass the clock to the engine instead")
    return engine


def _kind(source: object) -> EngineKind:
    kind = kind_for(source)
    if kind is None:
        raise UsageError(f"an engine must be a URL, a Redis client or an Engine, not {source!r}")
    return kind
