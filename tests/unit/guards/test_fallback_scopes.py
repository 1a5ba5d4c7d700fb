"""Namespaces of a fallback: each recovers by itself, and none goes on when the engine has stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import coroutine
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Charge, Decision, FixedWindow, Limiter
from headgate.charge import ChargeSet
from headgate.charge_kind import ChargeKind
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


def test_what_a_stopped_event_loop_was_about_to_charge_is_charged_by_another() -> None:
    class HangsOnCharges(Awaited):
        hangs = True

        async def decide(self, requests: Any) -> Any:
            forced = any(
                one.kind is ChargeKind.FORCE for request in requests for one in request.charges
            )
            if self.hangs and forced:
                asyncio.get_running_loop().stop()
                await asyncio.Event().wait()
            return await super().decide(requests)

    engine = FailingEngine(clock=ManualClock())
    hanging = HangsOnCharges(engine, in_threads=True)
    limiter = AsyncLimiter(hanging, on_error="fallback", nodes=1)
    guard: Any = fallback_of(limiter.engine)

    async def hit_until_it_is_back() -> int:
        admitted = 0
        async with asyncio.timeout(10):
            while not admitted or guard.breaker.is_open or guard.local.has_debts:
                (decision,) = await limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])
                admitted += decision.allowed
                await asyncio.sleep(0.01)  # The recovery runs in real time.
        return admitted

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    engine.error = DOWN
    taken = first.run_until_complete(
        limiter.engine.decide([ChargeSet((Charge("key", MINUTE, 4),))])
    )
    assert [one.allowed for one in taken] == [True]
    engine.error = None
    first.run_forever()  # Until the recovery stops it, in the middle of charging the store.
    hanging.hangs = False
    admitted = second.run_until_complete(hit_until_it_is_back())
    assert engine.usage("key", MINUTE).used == 4 + admitted
    for loop in (second, first):
        loop.run_until_complete(limiter.aclose())
        loop.close()


@pytest.mark.parametrize("cancels", [True, False])
def test_a_program_with_a_loop_for_each_call_is_back_when_the_store_is(cancels: bool) -> None:  # noqa: FBT001
    """No loop lives long enough for the recovery, whether it cancels its tasks at the end or not."""
    engine = FailingEngine(clock=ManualClock())
    limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
    guard: Any = fallback_of(limiter.engine)

    def hit() -> Decision:
        call = limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])
        if cancels:
            return asyncio.run(_first(call))
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(_first(call))
        finally:
            loop.close()

    engine.error = DOWN
    hits = [hit() for _ in range(3)]
    assert [one.source for one in hits] == ["fallback"] * 3
    engine.error = None
    wait_until(lambda: hit().source == "engine", "the store decides again")
    wait_until(lambda: not guard.breaker.recoveries, "the store knows what was admitted")
    assert engine.usage("key", MINUTE).used == 10


async def _first(call: Any) -> Decision:
    decisions: list[Decision] = await call
    return decisions[0]


def test_closing_the_engine_ends_a_recovery_in_a_thread() -> None:
    engine = FailingEngine(clock=ManualClock())
    limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
    shell: Any = fallback_shell_of(limiter.engine)
    engine.error = DOWN
    for _ in range(3):
        asyncio.run(_first(limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])))
    assert shell._in_thread
    asyncio.run(limiter.aclose())
    wait_until(lambda: not shell._in_thread, "nobody probes the store")


def test_an_engine_that_lives_in_one_loop_is_left_alone_when_that_has_ended() -> None:
    engine = FailingEngine(clock=ManualClock())
    described = replace(engine.describe(), event_loops="one")
    engine.describe = lambda: described  # type: ignore[method-assign]
    limiter = AsyncLimiter(Awaited(engine, in_threads=True), on_error="fallback", nodes=1)
    shell: Any = fallback_shell_of(limiter.engine)
    engine.error = DOWN
    for _ in range(3):
        asyncio.run(_first(limiter.engine.decide([ChargeSet((Charge("key", MINUTE),))])))
    assert (shell._in_thread, shell._task.done()) == (False, True)


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
