"""Sends commands to the right server and returns their replies, for asyncio.

It drives the generators of `sending.py` and `parallel_discovery.py` on the links of the running loop, within a
deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .batch import PendingBatch
from .failures import NotSent, Refused, Unanswered, timed_out
from .options import shown
from .parallel_discovery import PATIENCE_S, ParallelDiscovery
from .sending import Delay, Discover, Drop, RoutedCommand, Send, send_with_repair
from .topology import Sentinel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link import Link
    from .loops import LoopState
    from .options import Address, Options
    from .scripts import Dialect
    from .sending import SendSteps, Step
    from .topology import Question, Topology


class AsyncSender:
    """Runs commands. `state` returns the state of the running loop."""

    def __init__(
        self,
        options: Options,
        topology: Topology,
        dialect: Dialect,
        state: Callable[[], LoopState],
    ) -> None:
        self._options = options
        self._topology = topology
        self._dialect = dialect
        self._state = state

    async def ask(
        self, address: Address, command: tuple[Any, ...], seconds: float, *, sentinel: bool = False
    ) -> Any:
        """Send a command to a server; a link without an answer is not used again."""
        link: Link | None = None
        try:
            async with asyncio.timeout(seconds):
                link = await self._state().link(address, sentinel=sentinel)
                return await link.call(command)
        except TimeoutError:
            if link is not None:
                link.abort()
            raise

    async def run(
        self,
        routed: RoutedCommand,
        *,
        ends: float | None = None,
        first: Any = None,
        batch: PendingBatch | None = None,
    ) -> Any:
        """Send a command, with repair, within the deadline; `first` is the result of a first attempt."""
        now = asyncio.get_running_loop().time()
        deadline = self._options.deadline if ends is None else ends - now
        ends = now + deadline
        batch = PendingBatch() if batch is None else batch
        try:
            async with asyncio.timeout_at(ends):
                reply = await self._drive(routed, ends, first, batch)
        except TimeoutError:
            self._state().end_start()
            sent = batch.link is not None
            batch.give_up(self._state().deadline)  # Not by what is left of the caller's time.
            reason = None if sent else batch.trouble
            raise timed_out(deadline, reason, sent=sent) from reason
        else:
            self._state().end_start()
            return reply
        finally:
            batch.link = None

    async def _drive(
        self, routed: RoutedCommand, ends: float, first: Any, batch: PendingBatch
    ) -> Any:
        steps = self._steps(routed)
        state = self._state()
        outcome: Any = None
        failure: Exception | None = None
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(outcome)
                outcome = failure = None
                try:
                    match step:
                        case Send() if first is not None:
                            outcome, first = first, None
                            if isinstance(outcome, NotSent):
                                raise outcome
                        case Send(address, command, asking):
                            link = await self._link(state, address, ends, batch)
                            if batch.drop_abandoned():
                                if not batch:
                                    return None
                                steps = self._steps(batch.routed(routed.slot))
                                continue
                            batch.mark_sent(link, state.time())
                            outcome = await link.call(command, asking=asking)
                            batch.link = None
                        case _:
                            await self._prepare(step, routed.slot, state, batch)
                except (NotSent, Refused, Unanswered) as error:
                    failure, outcome = error, None
                    batch.link, batch.trouble = None, error
        except StopIteration as done:
            return done.value

    def _steps(self, routed: RoutedCommand) -> SendSteps:
        return send_with_repair(routed, self._topology, self._dialect)

    async def _prepare(self, step: Step, slot: int, state: LoopState, batch: PendingBatch) -> None:
        """Prepare for sending: connect, discover or wait."""
        match step:
            case Discover():
                await self.discover(slot)
            case Drop(address):
                state.drop(address)
            case Delay(seconds, reason):
                batch.trouble = reason or batch.trouble
                await asyncio.sleep(seconds)

    async def _link(
        self, state: LoopState, address: Address, ends: float, batch: PendingBatch
    ) -> Link:
        """A link to send on; raises if the deadline of a caller passes before there is one."""
        earlier = batch.trouble
        if earlier is None and not state.is_linked(address):
            secured = ", including the TLS handshake" if self._options.tls is not None else ""
            batch.trouble = NotSent(f"cannot connect to {shown(address)} in time{secured}")
        link = await state.link_in_time(address, ends)
        batch.trouble = earlier
        return link

    async def discover(self, slot: int) -> None:
        """Find the responsible server, or raise why not; concurrent tasks share one search."""
        if self._topology.address(slot) is not None:
            return
        search: ParallelDiscovery = await self._state().run_shared("search", self._search)
        search.require_found(self._topology, slot)

    async def _search(self) -> ParallelDiscovery:
        """Ask the servers that may know, until one does or none is left."""
        asked: dict[asyncio.Task[Any], Question] = {}
        search = ParallelDiscovery(self._topology.discovery())
        try:
            while not search.ended:
                for question in search.due():
                    asked[asyncio.create_task(self._question(question))] = question
                done, _ = await asyncio.wait(
                    asked, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if not search.ended:
                        search.process_reply(asked.pop(task), task.result())
                if not done:
                    search.ask_another()
        finally:
            for task in asked:
                task.cancel()
        return search

    async def _question(self, question: Question) -> Any:
        """The reply to a question of a search, or the reason why there is none."""
        address, command = question
        sentinel = isinstance(self._topology, Sentinel) and command[0] == b"SENTINEL"
        try:
            return await self.ask(
                address, command, self._options.connect_timeout, sentinel=sentinel
            )
        except (NotSent, Refused, Unanswered) as error:
            return error
        except TimeoutError:
            return NotSent(f"no answer from {shown(address)} in time")
