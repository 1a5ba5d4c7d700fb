"""The shells of the fallback: which calls reach the store, which are answered without it, and the recovery.

Methods are written once, as in `shell.py`; calls that give something back to the store (`settle`, `release`) are queued
while the store is down. The recovery runs in the background, in a thread or a task, and only while it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from _thread import start_new_thread
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from .._fork import reset_after_fork
from ..charge import require_costs
from ..engines.verbs import run, run_async, settle_each
from ..errors import EngineError, EngineTimeout
from .local_counts import Deferred
from .recovery import ProbePause, recover
from .shell import AsyncGuardedEngine, GuardedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..decision import Decision
    from ..engines.base import AsyncEngine, Engine
    from ..engines.verbs import Verb
    from .fallback import FallbackGuard
    from .recovery import EngineCall, Recovery

log: Final = logging.getLogger("headgate")
FAILED: Final = "the recovery of a store failed, and is retried"
PATIENCE_S: Final = 1.0


class _Verbs:
    """The verbs that both shells share."""

    _engine: Any
    guard: Any

    @property
    def _fallback(self) -> FallbackGuard:
        return cast("FallbackGuard", self.guard)

    def _decide(self, requests: Sequence[ChargeSet]) -> Verb[list[Decision]]:
        guard, breaker = self._fallback, self._fallback.breaker
        asked_ns = breaker.ticks() if breaker.calm else breaker.ask()
        if not asked_ns:
            return [guard.answer(request, guard.not_asked()) for request in requests]
        try:
            decisions = yield self._engine.decide(requests)
        except EngineError as error:
            guard.note_failure(asked_ns, error)
            return [self._answer(request, error) for request in requests]
        return [
            guard.note_answer(asked_ns, request, decision)
            for request, decision in zip(requests, decisions, strict=True)
        ]

    def _answer(self, request: ChargeSet, error: EngineError) -> Decision:
        """The fallback's answer. If the store may have made a reservation anyway, it is given back."""
        guard = self._fallback
        decision = guard.answer(request, error)
        if error.indefinite and request.reserve_us:
            guard.local.defer("withdraw", request)
            guard.wake()
        return decision

    def _settle(self, token: str, actual: int | Sequence[int]) -> Verb[bool]:
        guard = self._fallback
        found = guard.local.settle(token, require_costs(actual))
        if found is None:
            found = yield from self._give_back("settle", token, actual)
        guard.wake()
        return bool(found)

    def _settle_each(self, settlements: Sequence[tuple[str, int]]) -> Verb[None]:
        guard = self._fallback
        elsewhere = [one for one in settlements if guard.local.settle(one[0], one[1:]) is None]
        if elsewhere:
            call = settle_each(self._engine, elsewhere)
            yield from self._give_back_by(call, [Deferred("settle", one) for one in elsewhere])
        guard.wake()

    def _release(self, key: str, limit: Limit, token: str, rule: str | None) -> Verb[None]:
        if not self._fallback.local.release(key, limit, token, rule):
            yield from self._give_back("release", key, limit, token, rule)

    def _renew(self, key: str, limit: Limit, token: str, rule: str | None) -> Verb[bool]:
        held: bool | None = self._fallback.local.renew(key, limit, token, rule)
        if held is None:
            held = yield self._engine.renew(key, limit, token, rule)
        return bool(held)

    def _withdraw(self, request: ChargeSet) -> Verb[None]:
        token = request.token or ""
        if self._fallback.local.settle(token, (0,)) is None:
            yield from self._give_back("withdraw", request)

    def _leave_line(self, decision: Decision) -> Verb[None]:
        if decision.source == "fallback":
            self._fallback.local.leave_line(decision)
        else:
            yield self._engine.leave_line(decision)

    def _give_back(self, verb: str, *args: object) -> Verb[Any]:
        """Give something back to the store, or queue it for later; with `on_error: raise` the error is raised."""

        def call() -> Verb[Any]:
            result = yield getattr(self._engine, verb)(*args)
            return result

        return (yield from self._give_back_by(call(), [Deferred(verb, args)]))

    def _give_back_by(self, call: Verb[Any], deferred: Sequence[Deferred]) -> Verb[Any]:
        """`_give_back` with any call; `deferred` does the same later."""
        guard = self._fallback
        asked_ns = guard.breaker.ask()
        try:
            if not asked_ns:
                raise guard.not_asked()
            result = yield from call
        except EngineError as error:
            if asked_ns:
                guard.note_failure(asked_ns, error)
            if guard.policy(None) == "raise" or not error.transient:
                raise
            for one in deferred:
                guard.local.defer(one.verb, *one.args)
            guard.wake()
            return True
        guard.breaker.answered(asked_ns)
        return result

    def _recovery(self) -> Recovery:
        guard = self._fallback
        return recover(guard.breaker, guard.local, guard.breaker.clock)

    @property
    def _is_needed(self) -> bool:
        guard = self._fallback
        return guard.breaker.is_open or guard.local.has_debts

    def _look(self) -> bool:
        """Whether a recovery is needed, now that none runs; the breaker knows of it from here on."""
        guard, needed = self._fallback, self._is_needed
        if needed:
            guard.breaker.recoveries.add(guard.local)
        else:
            guard.breaker.recoveries.discard(guard.local)
        return needed


class FallbackEngine(_Verbs, GuardedEngine):
    """A blocking engine with a fallback."""

    def __init__(self, engine: Engine, guard: FallbackGuard) -> None:
        super().__init__(engine, guard)
        self._scoped: WeakSet[FallbackEngine] = WeakSet()
        self._begin()
        self._closed = threading.Event()
        guard.wake = self._wake
        reset_after_fork(self)

    def _begin(self) -> None:
        self._runs = False
        """Whether there is a thread, as far as is known: no need to start another."""
        self._recovering = threading.Lock()
        """Locked by the thread that recovers: several callers may start one at the same moment."""

    def after_fork(self) -> None:
        """Called in a child process, which does not have the parent's recovery thread."""
        self._begin()
        is_closed = self._closed.is_set()
        self._closed = threading.Event()
        if is_closed:
            self._closed.set()

    def scoped(self, namespace: str) -> Self:
        """See `Engine.scoped`. It recovers by itself, for as long as this one may."""
        twin = super().scoped(namespace)
        self._scoped.add(twin)
        return twin

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return run(self._renew(key, limit, token, rule))

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        run(self._release(key, limit, token, rule))

    def close(self) -> None:
        """See `Engine.close`."""
        self.stop()
        super().close()

    def stop(self) -> None:
        """Stop probing the store, in every namespace. The engine can still be used."""
        self._closed.set()
        for twin in list(self._scoped):
            twin.stop()

    def _wake(self) -> None:
        """Start the recovery unless it is running.

        Not a `threading.Thread`: its `start` waits for the thread with a lock that an interrupt would leave locked.
        """
        if self._runs or self._closed.is_set() or not self._look():
            return
        try:
            self._runs = True
            start_new_thread(self._recover, ())
        except RuntimeError:  # Too many threads, or the program ends: the next caller tries again.
            self._runs = False
        except BaseException:  # An interrupt.
            self._runs = False
            raise

    def _recover(self) -> None:
        if not self._recovering.acquire(blocking=False):
            return  # The one that recovers looks again when it is done.
        try:
            while self._is_needed and not self._closed.is_set():
                with closing(self._recovery()) as recovery:
                    self._drive(recovery)
        finally:
            self._recovering.release()
            self._runs = False
        self._wake()  # There may be something new to recover.

    def _drive(self, recovery: Recovery) -> None:
        try:
            step = next(recovery)
            while not self._closed.is_set():
                if isinstance(step, ProbePause):
                    self._closed.wait(step.seconds)
                    step = recovery.send(None)
                    continue
                try:
                    result = self._call(step)
                except Exception as error:  # noqa: BLE001 - the recovery knows what to do about it
                    step = recovery.throw(error)
                else:
                    step = recovery.send(result)
        except StopIteration:
            return
        except Exception:
            log.exception(FAILED)
            self._closed.wait(PATIENCE_S)

    def _call(self, step: EngineCall) -> Any:
        """Run a call. One with a time limit runs in its own thread, which is abandoned when the time is up."""
        verb = getattr(self._engine, step.verb)
        if step.within_s is None:
            return verb(*step.args)
        outcome: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

        def call() -> None:
            try:
                outcome.put((verb(*step.args), None))
            except Exception as error:  # noqa: BLE001 - it is raised in the waiting thread
                outcome.put((None, error))

        start_new_thread(call, ())
        try:
            result, error = outcome.get(timeout=step.within_s)
        except Empty:
            raise _late(step.within_s) from None
        if error is not None:
            raise error
        return result


class AsyncFallbackEngine(_Verbs, AsyncGuardedEngine):
    """An async engine with a fallback.

    Its recovery is a task of the event loop that needed it. If that loop ends first, as when a program calls
    `asyncio.run` for each request, the recovery goes on in a thread with a loop of its own.
    """

    def __init__(self, engine: AsyncEngine, guard: FallbackGuard) -> None:
        super().__init__(engine, guard)
        self._scoped: WeakSet[AsyncFallbackEngine] = WeakSet()
        self._begin()
        self._closed = False
        guard.wake = self._wake
        reset_after_fork(self)

    def _begin(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._recovering: Recovery | None = None
        """What the task runs. Closing it puts back what it was about to charge."""
        self._turn = object()
        """Whose turn it is to recover: one that goes on in a loop that had stopped finds it taken."""
        self._in_thread = False

    def after_fork(self) -> None:
        """Called in a child process, which has neither the parent's event loop nor its thread."""
        self._begin()

    def scoped(self, namespace: str) -> Self:
        """See `Engine.scoped`. It recovers by itself, for as long as this one may."""
        twin = super().scoped(namespace)
        self._scoped.add(twin)
        return twin

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return await run_async(self._renew(key, limit, token, rule))

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        await run_async(self._release(key, limit, token, rule))

    async def aclose(self) -> None:
        """See `Engine.close`."""
        await self.stop()
        await super().aclose()

    async def stop(self) -> None:
        """Stop probing the store, in every namespace. The engine can still be used."""
        self._closed = True
        for twin in list(self._scoped):
            await twin.stop()
        task = self._task
        if task is None or task.done():
            return
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        elif self._in_thread:
            with suppress(RuntimeError):  # Its loop has just ended.
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _wake(self) -> None:
        """Start the recovery unless it runs already; one in an event loop that was stopped does not."""
        if self._in_thread or self._closed:
            return
        task = self._task
        if task is not None and not task.done() and task.get_loop().is_running():
            return
        if self._recovering is not None:
            try:
                self._recovering.close()
            except ValueError:  # Its loop runs again, in another thread.
                return
        if not self._look():
            return
        if task is not None and not task.done() and task.get_loop().is_closed():
            self._continue_in_thread()
            return
        self._turn = turn = object()  # Not the task: an eager one runs before it is known here.
        self._task = asyncio.get_running_loop().create_task(self._recover(turn))
        self._task.add_done_callback(self._woken)

    def _woken(self, task: asyncio.Task[None]) -> None:
        if task is not self._task or self._closed:
            return
        if task.cancelled():  # Its event loop ends.
            self._continue_in_thread()
        elif not task.get_loop().is_closed():
            self._wake()  # There may be something new to recover.

    def _continue_in_thread(self) -> None:
        if self._engine.describe().event_loops == "one" or not self._look():
            return
        try:
            self._in_thread = True
            start_new_thread(self._recover_in_thread, ())
        except RuntimeError:  # Too many threads, or the program ends: the next caller tries again.
            self._in_thread = False
        except BaseException:  # An interrupt.
            self._in_thread = False
            raise

    def _recover_in_thread(self) -> None:
        try:
            with suppress(asyncio.CancelledError):  # The engine was closed.
                asyncio.run(self._recover_alone())
        finally:
            self._in_thread = False
            self._look()  # For what came as this ended: the next answer of the store begins again.

    async def _recover_alone(self) -> None:
        self._task, self._turn = asyncio.current_task(), object()
        try:
            while self._look() and not self._closed:
                await self._recover(self._turn)
        finally:
            if self._engine.describe().event_loops == "each":
                await self._engine.unguarded.aclose()

    async def _recover(self, turn: object) -> None:
        """Recover until nothing is left to do, or until another loop does it because this one had been stopped."""
        while self._is_needed and not self._closed and self._turn is turn:
            with closing(self._recovery()) as self._recovering:
                await self._drive(self._recovering, turn)

    async def _drive(self, recovery: Recovery, turn: object) -> None:
        try:
            step = next(recovery)
            while self._turn is turn:
                if isinstance(step, ProbePause):
                    await asyncio.sleep(step.seconds)
                    step = recovery.send(None)
                    continue
                try:
                    async with asyncio.timeout(step.within_s):
                        result = await getattr(self._engine, step.verb)(*step.args)
                except TimeoutError:
                    step = recovery.throw(_late(step.within_s))
                except Exception as error:  # noqa: BLE001 - the recovery knows what to do about it
                    step = recovery.throw(error)
                else:
                    step = recovery.send(result)
        except StopIteration:
            return
        except Exception:
            log.exception(FAILED)
            await asyncio.sleep(PATIENCE_S)


def _late(seconds: float | None) -> EngineTimeout:
    return EngineTimeout(f"no answer from the store within {seconds} s", transient=True)
