"""Namespaces of a fallback: each recovers by itself, and none goes on when the engine has stopped."""

from __future__ import annotations

import asyncio
from types import coroutine
from typing import TYPE_CHECKING, Any

from headgate import AsyncLimiter, Charge, FixedWindow, Limiter
from headgate.charge import ChargeSet
from headgate.engines.base import Awaited
from headgate.guards.stack import fallback_of, fallback_shell_of
from headgate.testing import ManualClock
from tests.servers.process import wait_until
from tests.unit.guards.failing_engine import DOWN, FailingEngine

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

MINUTE = FixedWindow(10, 60_000_000)


def test_closing_the_engine_ends_the_recovery_of_every_namespace() -> None:
    engine = FailingEngine(clock=ManualClock())
    limiter = Limiter(engine, on_error="fallback", nodes=1)
    scoped: Any = limiter.engine.scoped("other")
    scoped.unguarded.error = DOWN
    hits = [scoped.bind(MINUTE)("key", 1) for _ in range(3)]
    shell: Any = fallback_shell_of(scoped)
    assert [hit.source for hit in hits] == ["fallback"] * 3
    assert shell._runs
    limiter.engine.close()
    wait_until(lambda: not shell._runs, "nobody probes the store")


def test_closing_the_engine_ends_it_under_asyncio_too() -> None:
    async def ask() -> Any:
        engine = FailingEngine(clock=ManualClock())
        limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
        scoped: Any = limiter.engine.scoped("other")
        scoped.unguarded.error = DOWN
        for _ in range(3):
            await scoped.decide([ChargeSet((Charge("key", MINUTE),))])
        shell: Any = fallback_shell_of(scoped)
        assert not shell._task.done()
        await limiter.engine.aclose()
        return shell._task

    assert asyncio.run(ask()).cancelled()


def test_another_event_loop_recovers_if_the_one_that_began_is_stopped() -> None:
    engine = FailingEngine()
    limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
    guard: Any = fallback_of(limiter.engine)

    async def hit(times: int) -> None:
        for _ in range(times):
            await limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])
            await asyncio.sleep(0.01)  # The recovery runs between the hits.

    async def until_it_is_back() -> None:
        async with asyncio.timeout(10):
            while guard.breaker.is_open or guard.local.has_debts:
                await hit(1)

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    engine.error = DOWN
    first.run_until_complete(hit(3))
    assert guard.breaker.is_open
    engine.error = None
    second.run_until_complete(until_it_is_back())
    assert not guard.breaker.is_open
    first.run_until_complete(hit(1))  # What had begun here finds nothing left to do.
    for loop in (first, second):
        loop.run_until_complete(limiter.aclose())
        loop.close()


def test_a_loop_that_begins_every_task_at_once_recovers_too() -> None:
    """As with `asyncio.eager_task_factory`: a task runs before whoever made it knows it."""
    engine = FailingEngine()
    limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
    guard: Any = fallback_of(limiter.engine)

    factory: Any = begun_at_once

    async def use() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        engine.error = DOWN
        for _ in range(3):
            await limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])
        assert guard.breaker.is_open
        engine.error = None
        async with asyncio.timeout(10):
            while guard.breaker.is_open or guard.local.has_debts:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)  # The recovery runs in real time.
        await limiter.aclose()

    asyncio.run(use())


def begun_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Future[Any]:
    """A task whose work has run as far as to its first wait; in every version of Python."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        over = loop.create_future()
        over.set_result(done.value)
        return over

    @coroutine
    def rest() -> Generator[Any, Any, Any]:
        yield awaited
        outcome: Any = yield from work
        return outcome

    async def go_on() -> Any:
        outcome: Any = await rest()
        return outcome

    return asyncio.Task(go_on(), loop=loop, **options)


def test_a_namespace_can_be_forgotten_when_the_store_knows_what_it_has_admitted() -> None:
    engine = FailingEngine(clock=ManualClock())
    limiter = Limiter(engine, on_error="fallback", nodes=1)
    scoped: Any = limiter.engine.scoped("other")
    guard: Any = fallback_of(scoped)
    scoped.bind(MINUTE)("key", 1)
    assert guard.forgettable
    scoped.unguarded.error = DOWN
    for _ in range(3):
        scoped.bind(MINUTE)("key", 1)
    assert not guard.forgettable
    scoped.unguarded.error = None
    wait_until(lambda: guard.forgettable, "the store knows everything")
    assert engine.scoped("other").usage("key", MINUTE).used == 4
    limiter.engine.close()
