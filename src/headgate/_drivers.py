"""Drivers: they run the steps of a flow, one by blocking, one by awaiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ._flow import Ask, Flow, Leave, Pause
from .charge import shown
from .engines import verbs
from .errors import HeadgateError

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Coroutine

    from .decision import Decision
    from .engines.base import AsyncEngine, Engine
    from .engines.verbs import Verb


WAITING = "waiting %.3f s for %r"
LEAVE_FAILED = "the place in line of an interrupted call could not be given back: %s"


def run(flow: Flow, engine: Engine, log: logging.Logger) -> Decision:
    """Run a flow in this thread."""
    return verbs.run(_steps(flow, engine, log, engine.clock.sleep_us, engine.leave_line))


async def run_async(flow: Flow, engine: AsyncEngine, log: logging.Logger) -> Decision:
    """Run a flow in this task."""

    def leave_line(decision: Decision) -> Awaitable[None]:
        return run_to_completion(engine.leave_line(decision))

    return await verbs.run_async(_steps(flow, engine, log, engine.clock.asleep_us, leave_line))


def _steps(
    flow: Flow,
    engine: Engine | AsyncEngine,
    log: logging.Logger,
    sleep_us: Callable[[int], object],
    leave_line: Callable[[Decision], object],
) -> Verb[Decision]:
    """Run each step of a flow and send it the result, or throw the error into it: the flow cleans up and re-raises."""
    try:
        step = next(flow)
        while True:
            result: Decision | None = None
            try:
                match step:
                    case Ask(request):
                        (result,) = yield engine.decide([request])
                    case Pause(duration_us, key):
                        log.debug(WAITING, duration_us / 1_000_000, shown(key))
                        yield sleep_us(duration_us)
                    case Leave(decision):
                        yield from _leave_line(leave_line, decision, log)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as done:
        decided: Decision = done.value
        return decided


def _leave_line(
    leave_line: Callable[[Decision], object], decision: Decision, log: logging.Logger
) -> Verb[None]:
    try:
        yield leave_line(decision)
    except HeadgateError as error:
        log.warning(LEAVE_FAILED, error)


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Give something back, even if the waiting task is cancelled again."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)


_under_way: set[asyncio.Future[None]] = set()
"""Keeps a reference to running tasks, or they could be collected."""
