"""AsyncRedisEngine: the async shell.

The hot path is short on purpose: `bind` packs a request and hands it to the batcher; a tick later one script call is
sent on the link, and its reply resolves all futures. This needs no task. Only in unusual cases (no link yet, an error
reply, a lost connection) does a task take over the batch and run `send_with_repair`.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...algorithms import CalendarWindow
from ...charge import ONE, Charge, ChargeSet
from ...errors import EngineError
from ..meter import Meter
from ..verbs import run_async
from . import cross_slot
from .async_sending import AsyncSender
from .batch import PendingBatch, fail
from .cross_slot import Group, SlotStep, decide_across_slots, groups_of, perform
from .evictions import Evictions
from .failures import (
    NotSent,
    Refused,
    Unanswered,
    clock_keeps_jumping,
    no_answer,
    refused,
    timed_out,
    unanswered,
    unexpected_reply,
)
from .kind import description_of
from .loops import LoopState
from .operations import STALE_TRIES
from .shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...algorithms import Limit
    from ...decision import Decision
    from ..base import AsyncHit, EngineDescription, HookedHit, Hooks, KeyPage, Usage
    from .batch import Waiting
    from .loops import Greeting
    from .options import Address
    from .packed_requests import PackedRequest, PlainRequest
    from .sending import RoutedCommand


class AsyncRedisEngine(Shell):
    """Stores states in Redis or Valkey, for asyncio. Works in several event loops at once."""

    nowait = None

    def _open(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._greetings: list[Greeting] = []
        self._evictions = Evictions(self._log)
        self._sender = AsyncSender(self.options, self._topology, self._dialect, self._state)
        self.meter = Meter(self._gauges, has_batches=True)

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return description_of(self.options, self.meter, self._in_part, self._namespace)

    def _gauges(self) -> dict[str, int]:
        loops = list(self._loops.values())
        return {
            "store_queue_depth": sum(state.queued for state in loops),
            "store_evicted_keys": self._evictions.keys,
        }

    def greet_with(self, greeting: Greeting) -> None:
        """Run this greeting on every new connection to a server, before anything else is sent.

        A greeting that raises `NotSent` closes the connection.
        """
        self._greetings.append(greeting)

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """A function that takes units of `limit` for a key, batched with other calls of the same tick."""
        return self._bind(limit, rule, None)

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """See `AsyncEngine.bind_hooked`."""
        return self._bind(limit, rule, hooks)

    def _bind(
        self, limit: Limit, rule: str | None, hooks: Hooks | None
    ) -> Callable[..., asyncio.Future[Decision]]:
        """`bind`, for hits with and without a ticket for hooks."""
        operations, loops = self._operations, self._loops
        slot, clustered, codec = operations.slot, operations.clustered, operations.codec
        plain = codec.plain_maker(limit, rule, hooks)
        one = None if isinstance(limit, CalendarWindow) else ONE

        def hit(key: str, cost: int, ticket: Any = None) -> asyncio.Future[Decision]:
            if cost is one:
                part = plain(key, ticket)
                state = loops.get(get_running_loop()) or self._state()
                return state.batchers[slot(part) if clustered else 0].ask(operations, part)
            packed = codec.part(ChargeSet((Charge(key, limit, cost, rule=rule),)))
            packed.hooks, packed.ticket = hooks, ticket
            return self._ask(packed)

        return hit

    def _ask(
        self, part: PackedRequest | PlainRequest, ends: float | None = None
    ) -> asyncio.Future[Decision]:
        operations = self._operations
        return self._state().batchers[operations.slot(part)].ask(operations, part, ends)

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """Decide each request, all or nothing."""
        operations = self._operations
        if len(requests) == 1 and not operations.clustered:
            state = self._loops.get(get_running_loop()) or self._state()
            part = operations.codec.part(requests[0])
            return [await state.batchers[0].ask(operations, part)]
        return await self._decide(requests)

    async def _decide(
        self, requests: Sequence[ChargeSet], ends: float | None = None
    ) -> list[Decision]:
        operations = self._operations
        asked: list[Any] = []
        for request in requests:
            groups = groups_of(request, operations.codec.keys.tag) if operations.clustered else []
            if len(groups) > 1:
                asked.append(self._decide_across_slots(request, groups))
            else:
                asked.append(self._ask(operations.codec.part(request), ends))
        if len(asked) == 1:
            return [await asked[0]]
        return list(await asyncio.gather(*asked))

    async def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """Correct a reservation to the actual cost, once."""
        return await run_async(self._settle(token, actual))

    async def settle_each(self, settlements: Sequence[tuple[str, int]]) -> None:
        """`settle` for several reservations; whether they existed is not told."""
        await run_async(self._settle_each(settlements))

    async def withdraw(self, request: ChargeSet) -> None:
        """Give back what a request has reserved, or will have."""
        await run_async(self._withdraw(request))

    async def leave_line(self, decision: Decision) -> None:
        """Give up a place in line; it is given back once nobody waits behind it."""
        await run_async(self._leave_line(decision))

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold slots for another term."""
        routed = self._operations.slots(key, limit, token, rule, renew=True)
        held: bool = await self._run(routed) == [1]
        return held

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Release slots."""
        await self._run_to_completion(self._operations.slots(key, limit, token, rule, renew=False))

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and the answer that a hit of one unit would get."""
        return await run_async(self._usage(key, limit, rule))

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        await self._run(self._operations.reset(key, limit, rule))

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """Keys in use, by SCAN: some may come twice, but none that stays in use is missed."""
        return await run_async(self._list_keys(prefix, cursor, limit))

    async def run(self, routed: RoutedCommand) -> Any:
        """Run a command that is not a decision, within the deadline; also used by the board."""
        return await self._run(routed)

    async def _run_to_completion(self, command: RoutedCommand) -> Any:
        """Give something back even if the caller is cancelled meanwhile; it may have to be sent again."""
        state = self._state()
        ends = state.time() + state.deadline
        return await asyncio.shield(state.spawn(self._run(command, ends=ends)))

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        state = self._loops.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.close()

    def _state(self) -> LoopState:
        loop = asyncio.get_running_loop()
        state = self._loops.get(loop)
        if state is None:
            for over in [one for one in list(self._loops) if one.is_closed()]:
                self._loops.pop(over, None)  # Its loop ended without `aclose`.
            state = self._loops[loop] = LoopState(
                loop,
                self.options,
                self._send,
                self._topology.forget,
                self._evictions,
                greetings=self._greetings,
            )
        return state

    def _send(self, state: LoopState, slot: int, batch: PendingBatch) -> None:
        """Send a batch; called by the batcher, within a tick."""
        packed = batch.packed()
        address = self._topology.address(slot)
        link = None if address is None else state.links.get((address, False))
        on_reply = partial(self._take_in, state, slot, batch)
        if link is None or not link.send(packed, on_reply):
            state.spawn(self._send_slow_path(state, batch.routed(slot), batch))
            return
        batch.mark_sent(link, state.time())

    def _take_in(self, state: LoopState, slot: int, batch: PendingBatch, reply: Any) -> None:
        """Distribute the reply to a batch; called by the link."""
        link, batch.link = batch.link, None
        if isinstance(reply, Exception) and not isinstance(reply, Unanswered):
            state.spawn(self._send_slow_path(state, batch.routed(slot), batch, first=reply))
            return
        answered = type(reply) is list
        if answered and link is not None:
            self._topology.answered(link.address)
        state.batchers[slot].done(batch, answered=answered)
        if self.meter.on_batch is not None:
            self.meter.on_batch(state.time() - batch.since, len(batch))
        if not answered and isinstance(reply, Unanswered):
            fail(batch, unanswered(reply))
            return
        try:
            stale = batch.answer(reply)
        except Exception:  # A bug; callers must not have to wait for the deadline.
            fail(batch, unexpected_reply(reply))
            raise
        if stale:
            state.spawn(self._send_again(stale, reply[0]))

    async def _send_slow_path(
        self, state: LoopState, routed: RoutedCommand, batch: PendingBatch, first: Any = None
    ) -> None:
        """Send a batch in an unusual case."""
        try:
            # Only until the first deadline: a caller must not get "not sent" for a request that is sent after all.
            ends = min(waiting[3] for waiting in batch)
            reply = await self._run(routed, ends=ends, first=first, batch=batch)
            stale = batch.answer(reply) if batch else []
            if stale:
                await self._send_again(stale, reply[0])
        except EngineError as error:
            fail(batch, error)
        except Exception as error:
            fail(batch, error)
            raise
        finally:
            state.batchers[routed.slot].done(batch)

    async def _send_again(self, stale: list[Waiting], now_us: int) -> None:
        """Send requests again, with calendars for the store's time."""
        for waiting in stale:
            batch = PendingBatch([waiting])
            try:
                await self._send_until_current(batch, now_us)
            except EngineError as error:
                fail(batch, error)
            except Exception as error:
                fail(batch, error)
                raise

    async def _send_until_current(self, batch: PendingBatch, now_us: int) -> None:
        for _ in range(STALE_TRIES):
            ((future, part, operations, ends),) = batch
            again = operations.again(part, now_us)
            batch[0] = (future, again, operations, ends)
            reply = await self._run(batch.routed(operations.slot(again)), ends=ends, batch=batch)
            if not batch or not batch.answer(reply):
                return
            now_us = reply[0]
        raise clock_keeps_jumping()

    async def _decide_across_slots(self, request: ChargeSet, groups: list[Group]) -> Decision:
        """Run the steps in a separate task: a cancelled caller leaves nothing charged."""
        state, abandoned = self._state(), asyncio.Event()
        ends = state.time() + state.deadline
        taken: list[str] = []
        work = state.spawn(self._run_across_slots(request, groups, taken, ends, abandoned))
        try:
            decision: Decision = await asyncio.shield(work)
        except asyncio.CancelledError:
            abandoned.set()
            if work.done():  # Otherwise it notices that it is abandoned.
                state.spawn(self._undo(taken, ends))
            raise
        return decision

    async def _run_across_slots(
        self,
        request: ChargeSet,
        groups: list[Group],
        taken: list[str],
        ends: float,
        abandoned: asyncio.Event,
    ) -> Decision:
        """Run the steps, recording in `taken` what can be given back; when abandoned, give it back."""
        steps = decide_across_slots(request, groups)
        try:
            decision = await run_async(
                perform(steps, lambda step: self._do_slot_step(step, ends), taken, abandoned.is_set)
            )
        except EngineError:  # The steps have already given everything back.
            raise
        except BaseException:  # For example when the loop is about to end.
            await self._undo(taken, ends)
            raise
        if decision is not None and not abandoned.is_set():
            return decision
        await self._undo(taken, ends)
        raise asyncio.CancelledError

    async def _do_slot_step(self, step: SlotStep, ends: float) -> Any:
        match step:
            case cross_slot.UndoStep(token):
                await self._undo([token], ends)
                return None
            case cross_slot.PeekStep(request):
                return await self._ask(self._operations.codec.part(request, look=True), ends)
            case cross_slot.Take(request, name):
                return await self._ask(self._operations.codec.part(request, name=name), ends)

    async def _undo(self, tokens: list[str], ends: float) -> None:
        """Give back what is possible within half a deadline; errors are ignored, because no caller is left."""
        until = ends + self.options.deadline / 2
        for routed in [one for token in tokens for one in self._operations.settle(token, 0)]:
            with suppress(EngineError):
                await self._run(routed, ends=until)

    async def _nodes(self) -> list[Address]:
        if self._topology.address(0) is None:
            try:
                await self._sender.discover(0)
            except (NotSent, Refused) as error:
                raise no_answer(error) from error
        return self._known_nodes()

    async def _ask_node(self, address: Address, command: tuple[Any, ...]) -> Any:
        try:
            reply = await self._sender.ask(address, command, self.options.deadline)
        except (NotSent, Refused, Unanswered) as error:
            raise no_answer(error) from error
        except TimeoutError:
            raise timed_out(self.options.deadline) from None
        if isinstance(reply, Exception):
            raise refused(str(reply))
        return reply

    async def _run(self, command: RoutedCommand, **how: Any) -> Any:
        return await self._sender.run(command, **how)
