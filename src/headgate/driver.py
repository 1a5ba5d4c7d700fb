"""Drivers: they do what a flow asks for, one by blocking, one by awaiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .algorithms import Concurrency
from .charge import shown
from .errors import HeadgateError
from .flow import Ask, Flow, Leave, Pause, Release, Step

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from .charge import Request
    from .decision import Decision
    from .engines.base import AsyncEngine, Engine


WAITING = "waiting %.3f s for %r"
UNTIDY = "what an interrupted call had booked could not be given back: %s"


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
        case Leave() | Release():
            try:
                _tidy_up(step, engine)
            except HeadgateError as error:
                log.warning(UNTIDY, error)
    return None


def _tidy_up(step: Leave | Release, engine: Engine) -> None:
    match step:
        case Leave(decision):
            engine.leave_line(decision)
        case Release(request):
            for key, limit, token, rule in _slots(request):
                engine.release(key, limit, token, rule)


async def _do_async(step: Step, engine: AsyncEngine, log: logging.Logger) -> Decision | None:
    match step:
        case Ask(request):
            return (await engine.decide([request]))[0]
        case Pause(duration_us, key):
            log.debug(WAITING, duration_us / 1_000_000, shown(key))
            await engine.clock.asleep_us(duration_us)
        case Leave() | Release():
            try:
                await _tidy_up_async(step, engine)
            except HeadgateError as error:
                log.warning(UNTIDY, error)
    return None


async def _tidy_up_async(step: Leave | Release, engine: AsyncEngine) -> None:
    match step:
        case Leave(decision):
            await engine.leave_line(decision)
        case Release(request):
            for key, limit, token, rule in _slots(request):
                await engine.release(key, limit, token, rule)


def _slots(request: Request) -> Iterator[tuple[str, Concurrency, str, str | None]]:
    """What is to be let go: key, limit, token and rule of every slot that was asked for."""
    for charge in request.charges:
        for limit in charge.limits:
            if isinstance(limit, Concurrency) and request.token is not None:
                yield charge.key, limit, request.token, charge.rule
