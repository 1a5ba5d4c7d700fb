"""AsyncRedisEngine: the shell for asyncio.

The hot path is short on purpose: `bind` packs a request and hands it to the batcher, a tick later one script call leaves
on the link, and its reply answers all futures. No task is made for that. Only when something is not as usual (no
link yet, an error reply, a lost connection) does a task take the batch over and run `carry` to the end.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...algorithms import CalendarWindow
from ...charge import ONE, Charge, Request
from ...errors import EngineError
from ..base import require_page
from .batch import Batch, fail
from .carry import Discover, Drop, Errand, Pause, Send, carry
from .failures import (
    NotSent,
    Refused,
    Unanswered,
    no_answer,
    nonsense,
    refused,
    timed_out,
    unanswered,
)
from .loops import LoopState
from .meter import Meter
from .operations import Scan
from .options import shown
from .shell import Shell
from .spread import Look, Undo, decide_spread, groups_of
from .topology import Cluster, Sentinel

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from ...algorithms import Limit
    from ...clock import Clock
    from ...decision import Decision
    from ..base import AsyncHit, Page, Usage
    from .batch import Waiting
    from .codec import Part, Plain, Witness
    from .link import Link
    from .options import Address, Options


class AsyncRedisEngine(Shell):
    """Keeps states in Redis or Valkey, for asyncio. Works in several event loops at once."""

    def __init__(
        self,
        url: str | Options,
        *,
        clock: Clock | None = None,
        colocate: Callable[[str], str] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__(url, clock=clock, colocate=colocate, logger=logger)
        self._loops: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self.meter = Meter()
        """Tells whoever wants to know how its calls go."""

    @property
    def queued(self) -> int:
        """Requests that wait for their batch to leave."""
        return sum(state.queued for state in list(self._loops.values()))

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """A function that takes units of `limit` for a key, together with others of the same tick."""
        operations = self._operations
        one = self.bind_one(limit, rule)

        def hit(key: str, cost: int) -> asyncio.Future[Decision]:
            if one is not None and cost is ONE:
                return one(key)
            return self._ask(operations.codec.part(Request((Charge(key, limit, cost, rule=rule),))))

        return hit

    def bind_one(
        self, limit: Limit, rule: str | None = None, witness: Witness | None = None
    ) -> Callable[..., asyncio.Future[Decision]] | None:
        """`bind` for one unit, with a witness, who is given what is passed besides the key; not for calendars."""
        if isinstance(limit, CalendarWindow):
            return None
        operations, loops = self._operations, self._loops
        slot, clustered = operations.slot, operations.clustered
        plain = operations.codec.plain_maker(limit, rule, witness)

        def hit(key: str, given: Any = None) -> asyncio.Future[Decision]:
            part = plain(key, given)
            state = loops.get(get_running_loop()) or self._state()
            return state.batchers[slot(part) if clustered else 0].ask(operations, part)

        return hit

    def _ask(self, part: Part | Plain, ends: float | None = None) -> asyncio.Future[Decision]:
        operations = self._operations
        return self._state().batchers[operations.slot(part)].ask(operations, part, ends)

    async def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""
        return await self._decide(requests)

    async def _decide(
        self, requests: Sequence[Request], ends: float | None = None
    ) -> list[Decision]:
        operations = self._operations
        asked: list[Any] = []
        for request in requests:
            groups = groups_of(request, operations.codec.keys.tag) if operations.clustered else []
            if len(groups) > 1:
                asked.append(self._decide_spread(request, groups))
            else:
                asked.append(self._ask(operations.codec.part(request), ends))
        if len(asked) == 1:
            return [await asked[0]]
        return list(await asyncio.gather(*asked))

    async def settle(self, token: str, actual: int) -> bool:
        """Correct a reservation to what was really used, once."""
        replies = [await self._run(one) for one in self._operations.settle(token, actual)]
        return all(reply == [1] for reply in replies)

    async def leave_line(self, decision: Decision) -> None:
        """Give back a place in line, if it is the last."""
        errand = self._operations.leave_line(decision)
        if errand is not None:
            await self._run(errand)

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while."""
        errand = self._operations.slots(key, limit, token, rule, renew=True)
        held: bool = await self._run(errand) == [1]
        return held

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Let go of slots."""
        await self._run(self._operations.slots(key, limit, token, rule, renew=False))

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""
        now_us = None
        while True:
            reply = await self._run(self._operations.usage(key, limit, rule, now_us))
            usage = self._operations.read_usage(reply, key)
            if usage is not None:
                return usage
            now_us = reply[0]

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        await self._run(self._operations.reset(key, limit, rule))

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, by SCAN: some may come twice, and none that stays is missed."""
        require_page(prefix, cursor, limit)
        nodes = await self._nodes()
        listing = self._operations.listing(prefix, cursor, limit, len(nodes))
        outcome: Any = None
        try:
            while True:
                match listing.send(outcome):
                    case Scan(node, command):
                        outcome = await self._ask_node(nodes[node], command)
                    case errand:
                        outcome = await self._run(errand)
        except StopIteration as done:
            page: Page = done.value
            return page

    async def run(self, errand: Errand) -> Any:
        """Carry out something that is not a decision, within the deadline: the board lives next door."""
        return await self._run(errand)

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
                self._loops.pop(over, None)  # A loop that ended without `aclose` is let go here.
            state = self._loops[loop] = LoopState(loop, self.options, self._send, self._log)
        return state

    def _send(self, state: LoopState, slot: int, batch: Batch) -> None:
        """Send a batch on its way; called by the batcher, within a tick."""
        packed = batch.packed()
        address = self._topology.address(slot)
        link = None if address is None else state.links.get((address, False))
        on_reply = partial(self._take_in, state, slot, batch)
        if link is None or not link.send(packed, on_reply):
            state.spawn(self._send_carefully(state, batch.errand(slot), batch))
            return
        batch.leave_on(link, state.time())

    def _take_in(self, state: LoopState, slot: int, batch: Batch, reply: Any) -> None:
        """Hand out the reply to a batch; called by the link."""
        link, batch.link = batch.link, None
        if isinstance(reply, Exception) and not isinstance(reply, Unanswered):
            state.spawn(self._send_carefully(state, batch.errand(slot), batch, first=reply))
            return
        heard = type(reply) is list
        state.batchers[slot].done(batch, heard=heard)
        if self.meter.on_batch is not None:
            self.meter.on_batch(state.time() - batch.since, len(batch))
        if not heard and isinstance(reply, Unanswered):
            if link is not None:
                self._topology.forget(link.address)
            fail(batch, unanswered(str(reply)))
            return
        try:
            stale = batch.answer(reply)
        except Exception:  # A bug of ours; whoever waits must not wait for the deadline.
            fail(batch, nonsense(reply))
            raise
        if stale:
            state.spawn(self._send_again(stale, reply[0]))

    async def _send_carefully(
        self, state: LoopState, errand: Errand, batch: Batch, first: Any = None
    ) -> None:
        """Carry a batch out when something is not as usual."""
        try:
            # Until the first runs out of time: nobody is told that nothing was sent, and sent after all.
            ends = min(waiting[3] for waiting in batch)
            reply = await self._run(errand, ends=ends, first=first, batch=batch)
            stale = batch.answer(reply)
            if stale:
                await self._send_again(stale, reply[0])
        except EngineError as error:
            fail(batch, error)
        except Exception as error:
            fail(batch, error)
            raise
        finally:
            state.batchers[errand.slot].done(batch)

    async def _send_again(self, stale: list[Waiting], now_us: int) -> None:
        """Send requests again with calendars as they are at the store's time."""
        for future, part, operations, ends in stale:
            again = operations.again(part, now_us)
            try:
                errand = operations.errand(operations.slot(again), [again])
                reply = await self._run(errand, ends=ends)
                Batch([(future, again, operations, ends)]).answer(reply)
            except EngineError as error:
                fail([(future, part, operations, ends)], error)

    async def _decide_spread(self, request: Request, groups: list[Request]) -> Decision:
        """Run the steps beside the caller: one that is cancelled leaves nothing taken behind."""
        ends = asyncio.get_running_loop().time() + self.options.deadline
        state, abandoned = self._state(), asyncio.Event()
        taken: list[str] = []
        work = state.spawn(self._spread(request, groups, taken, ends, abandoned))
        try:
            decision: Decision = await asyncio.shield(work)
        except asyncio.CancelledError:
            abandoned.set()
            if work.done():  # Else it sees that it is abandoned.
                state.spawn(self._undo(taken, ends))
            raise
        return decision

    async def _spread(
        self,
        request: Request,
        groups: list[Request],
        taken: list[str],
        ends: float,
        abandoned: asyncio.Event,
    ) -> Decision:
        """Run the steps, noting in `taken` what can be given back; when abandoned, give it back."""
        steps = decide_spread(request, groups)
        outcome: Any = None
        failure: EngineError | None = None
        try:
            while not abandoned.is_set():
                step = steps.throw(failure) if failure else steps.send(outcome)
                outcome = failure = None
                try:
                    outcome = await self._spread_step(step, ends)
                except EngineError as error:
                    failure = error
                if isinstance(step, Request) and outcome and outcome.token is not None:
                    taken.append(outcome.token)
        except StopIteration as done:
            decision: Decision = done.value
            if not abandoned.is_set():
                return decision
        except EngineError:  # The steps have given back what was taken.
            raise
        except BaseException:  # Among others, when the loop is about to end.
            await self._undo(taken, ends)
            raise
        await self._undo(taken, ends)
        raise asyncio.CancelledError

    async def _spread_step(self, step: Look | Request | Undo, ends: float) -> Any:
        match step:
            case Undo(token):
                await self._undo([token], ends)
                return None
            case Look(request):
                return await self._ask(self._operations.codec.part(request, look=True), ends)
            case _:
                return (await self._decide([step], ends))[0]

    async def _undo(self, tokens: list[str], ends: float) -> None:
        """Give back what can be, for half a deadline more; there is nobody left to tell about the rest."""
        until = ends + self.options.deadline / 2
        for errand in [one for token in tokens for one in self._operations.settle(token, 0)]:
            with suppress(EngineError):
                await self._run(errand, ends=until)

    async def _nodes(self) -> list[Address]:
        if self._topology.address(0) is None:
            try:
                await self._discover(0)
            except (NotSent, Refused) as error:
                raise no_answer(error) from error
        if isinstance(self._topology, Cluster):
            return self._topology.masters
        address = self._topology.address(0)
        return [] if address is None else [address]

    async def _ask_node(self, address: Address, command: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(self.options.deadline):
                link = await self._state().link(address)
                reply = await link.call(command)
        except (NotSent, Refused, Unanswered) as error:
            raise no_answer(error) from error
        except TimeoutError:
            raise timed_out(self.options.deadline) from None
        if isinstance(reply, Exception):
            raise refused(str(reply))
        return reply

    async def _run(
        self,
        errand: Errand,
        *,
        ends: float | None = None,
        first: Any = None,
        batch: Batch | None = None,
    ) -> Any:
        """Carry an errand out within the deadline; `first` is what a first attempt brought."""
        loop = asyncio.get_running_loop()
        deadline = self.options.deadline
        ends = loop.time() + deadline if ends is None else ends
        batch = Batch() if batch is None else batch
        try:
            async with asyncio.timeout_at(ends):
                return await self._travel(errand, ends, first, batch)
        except TimeoutError:
            sent = batch.link is not None
            batch.give_up(loop, deadline)
            reason = None if sent else batch.trouble
            raise timed_out(deadline, reason, sent=sent) from reason
        finally:
            batch.link = None

    async def _travel(self, errand: Errand, ends: float, first: Any, batch: Batch) -> Any:
        journey = carry(errand, self._topology, self._dialect)
        state = self._state()
        outcome: Any = None
        failure: Exception | None = None
        try:
            while True:
                step = journey.throw(failure) if failure else journey.send(outcome)
                outcome = failure = None
                try:
                    match step:
                        case Send() if first is not None:
                            outcome, first = first, None
                            if isinstance(outcome, NotSent):
                                raise outcome
                        case Send(address, command, asking):
                            link = await self._link(state, address, ends, batch)
                            batch.leave_on(link, state.time())
                            outcome = await link.call(command, asking=asking)
                            batch.link = None
                        case Discover():
                            await self._discover(errand.slot)
                        case Drop(address):
                            state.drop(address)
                        case Pause(seconds, reason):
                            batch.trouble = reason or batch.trouble
                            await asyncio.sleep(seconds)
                except (NotSent, Refused, Unanswered) as error:
                    failure, outcome = error, None
                    batch.link, batch.trouble = None, error
        except StopIteration as done:
            return done.value

    async def _link(self, state: LoopState, address: Address, ends: float, batch: Batch) -> Link:
        """A link to send on; who runs out of time before there is one is told that it was waited for."""
        earlier = batch.trouble
        if earlier is None and not state.is_linked(address):
            secured = ", the TLS handshake included" if self.options.tls is not None else ""
            batch.trouble = NotSent(f"cannot connect to {shown(address)} in time{secured}")
        link = await state.link_in_time(address, ends)
        batch.trouble = earlier
        return link

    async def _discover(self, slot: int) -> None:
        """Find out who is responsible, or raise why not; tasks that want to know at the same time ask once."""
        state = self._state()
        async with state.discovering:
            if self._topology.address(slot) is not None:
                return
            discovery = self._topology.discovery()
            sentinels = isinstance(self._topology, Sentinel)
            outcome: Any = None
            try:
                while True:
                    address, command = discovery.send(outcome)
                    try:
                        async with asyncio.timeout(self.options.connect_timeout):
                            asks = sentinels and command[0] == b"SENTINEL"
                            link = await state.link(address, sentinel=asks)
                            outcome = await link.call(command)
                    except (NotSent, Refused, Unanswered) as error:
                        outcome = error
                    except TimeoutError:
                        outcome = NotSent(f"no answer from {shown(address)} in time")
            except StopIteration as done:
                self._require_found(slot, done.value)
