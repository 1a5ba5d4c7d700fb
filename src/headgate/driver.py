"""Drivers: they do what a flow asks for, one by blocking, one by awaiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .algorithms import Concurrency
from .charge import shown
from .flow import Ask, Flow, Leave, Pause, Release, Step

if TYPE_CHECKING:
    import logging

    from .decision import Decision
    from .engines.base import AsyncEngine, Engine


WAITING = "waiting %.3f s for %r"


def run(flow: Flow, engine: Engine, log: logging.Logger) -> Decision:
    """Run a flow in this thread."""
    try:
        step = next(flow)
        while True:
            try:
                result = _do(step, engine, log)
            except BaseException as error:  # noqa: BLE001 - the flow tidies up and raises it again
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as done:
        decision: Decision = done.value
        return decision


async def run_async(flow: Flow, engine: AsyncEngine, log: logging.Logger) -> Decision:
    """Run a flow in this task."""
    try:
        step = next(flow)
        while True:
            try:
                result = await _do_async(step, engine, log)
            except BaseException as error:  # noqa: BLE001 - the flow tidies up and raises it again
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as done:
        decision: Decision = done.value
        return decision


def _do(step: Step, engine: Engine, log: logging.Logger) -> Decision | None:
    match step:
        case Ask(request):
            return engine.decide([request])[0]
        case Pause(duration_us, key):
            log.debug(WAITING, duration_us / 1_000_000, shown(key))
            engine.clock.sleep_us(duration_us)
        case Leave(decision):
            engine.leave_line(decision)
        case Release(request):
            for charge in request.charges:
                for limit in charge.limits:
                    if isinstance(limit, Concurrency) and request.token is not None:
                        engine.release(charge.key, limit, request.token, charge.rule)
    return None


async def _do_async(step: Step, engine: AsyncEngine, log: logging.Logger) -> Decision | None:
    match step:
        case Ask(request):
            return (await engine.decide([request]))[0]
        case Pause(duration_us, key):
            log.debug(WAITING, duration_us / 1_000_000, shown(key))
            await engine.clock.asleep_us(duration_us)
        case Leave(decision):
            await engine.leave_line(decision)
        case Release(request):
            for charge in request.charges:
                for limit in charge.limits:
                    if isinstance(limit, Concurrency) and request.token is not None:
                        await engine.release(charge.key, limit, request.token, charge.rule)
    return None
