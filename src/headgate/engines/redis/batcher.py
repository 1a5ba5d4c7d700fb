"""The batcher: requests of one tick of the event loop travel as one script call.

Each caller has a future and one deadline, counted from when it asked, queueing included. At most `max_in_flight` calls
are on their way to a server at once; what comes meanwhile waits and travels with the next one, so the busier it gets, the
larger the batches. A caller that is cancelled before its batch leaves is left out; one that is cancelled later does
not hurt the others.

**One alone does not wait.** Who comes right after an answer to one who travelled alone is sent at once: nobody is left
behind, and the link has just been heard from. All others leave at the end of the tick, with whoever else asks in it and
after the loop had a look whether the link was closed, or as soon as a batch is full.

**Two halves.** A server answers all that it finds on a connection before it sends the first answer, and while it does this
we would have nothing to do, and then the other way round. So one call leaves at a time, with at most half of all that is
asked for: the server decides one half while the answers to the other are handed out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from ...errors import UsageError
from .batch import Batch, Lone, fail
from .codec import MAX_RULES, Plain
from .failures import timed_out

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ...decision import Decision
    from .batch import Waiting
    from .codec import Part
    from .operations import Operations

Sender: TypeAlias = "Callable[[int, Batch], None]"
FRESH = 0.005
"""So many seconds after an answer a link is taken to be open still, without another look."""
WORTHWHILE = 16
"""So many at least are worth a call of their own, which has its price; fewer travel with the others."""


class Batcher:
    """Collects requests for one slot (or for all, where there are none) and sends them together."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slot: int,
        send: Sender,
        limits: tuple[int, int, float],
    ) -> None:
        self._loop = loop
        self._slot = slot
        self._send = send
        self._max_batch, self._max_in_flight, self._deadline = limits
        self._queue: deque[Waiting] = deque()
        self._sent: dict[int, Batch] = {}
        """Batches with somebody who waits still, in the order they were sent, by their `id`."""
        self._in_flight = 0
        self._scheduled = False
        self._alone_until = 0.0
        """Until when one who asks is sent at once; 0 as long as anything waits or is on its way."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def ask(
        self, operations: Operations, part: Part | Plain, ends: float | None = None
    ) -> asyncio.Future[Decision]:
        """Queue a request; its answer comes with the future. `ends` is for who has less time than usual."""
        loop = self._loop
        future: asyncio.Future[Decision] = loop.create_future()
        now = loop.time()
        if ends is None:
            ends = now + self._deadline
        else:
            timer = loop.call_at(ends, self._expire)
            future.add_done_callback(lambda _: timer.cancel())
        waiting = (future, part, operations, ends)
        if now < self._alone_until:
            self._dispatch((Lone if type(part) is Plain else Batch)((waiting,)))
            if self._timer is None:
                self._watch()
            return future
        self._alone_until = 0.0
        self._queue.append(waiting)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        elif len(self._queue) >= self._max_batch:
            self._leave(self._max_batch)
        return future

    def done(self, batch: Batch, *, heard: bool = False) -> None:
        """A call has come back: the next one leaves, before anybody is told, to keep the server busy.

        `heard` is whether its link brought the answer just now.
        """
        self._in_flight -= 1
        self._sent.pop(id(batch), None)
        if self._queue:
            self._flush()
        elif heard and not self._in_flight and len(batch) == 1:
            self._alone_until = self._loop.time() + FRESH

    def _flush(self) -> None:
        """The tick is over."""
        self._scheduled = False
        self._leave(self._half())
        if self._queue and self._in_flight < self._max_in_flight:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        if self._timer is None and (self._queue or self._sent):
            self._watch()

    def _leave(self, most: int) -> None:
        """Send the next batch, if one more may be on its way."""
        if self._queue and self._in_flight < self._max_in_flight:
            batch = self._next_batch(min(most, self._max_batch))
            if batch:
                self._dispatch(batch)

    def _dispatch(self, batch: Batch) -> None:
        """Send a batch; one that cannot be packed is sent request by request, to find the culprit."""
        try:
            self._send(self._slot, batch)
        except Exception as error:  # noqa: BLE001 - it goes to who waits
            if len(batch) == 1:
                fail(batch, error)
                return
            for waiting in batch:
                self._dispatch(Batch([waiting]))
            return
        self._in_flight += 1  # All this while the server is at work.
        self._sent[id(batch)] = batch
        self._alone_until = 0.0

    def _next_batch(self, most: int) -> Batch:
        batch = Batch()
        rules: set[bytes] = set()
        last = None
        queue = self._queue
        while queue and len(batch) < most:
            waiting = queue.popleft()
            future, part, _, _ = waiting
            if future.done():  # Cancelled, or out of time.
                continue
            shared = part[2] if type(part) is Plain else part
            if shared is not last:  # Most are of one limit, and share its form.
                last = shared
                rules.update(shared.rules)
                if len(rules) > MAX_RULES:
                    if batch:
                        queue.appendleft(waiting)
                        break
                    too_many = (
                        f"a request has at most {MAX_RULES} different limits, not {len(rules)}"
                    )
                    future.set_exception(UsageError(too_many))
                    rules.clear()
                    continue
            batch.append(waiting)
        return batch

    def _half(self) -> int:
        """How many leave now: half of all that is asked for, or all who wait if few would stay behind."""
        waiting = len(self._queue)
        half = (waiting + sum(map(len, self._sent.values())) + 1) // 2
        return half if waiting - half >= WORTHWHILE else waiting

    def _watch(self) -> None:
        """Wake when the first who waits runs out of time; those with less than usual wake us themselves."""
        if self._timer is not None:
            self._timer.cancel()
        ends: list[float] = []
        for batch in list(self._sent.values()):
            ends = [until for future, _, _, until in batch if not future.done()]
            if ends:
                break
            del self._sent[id(batch)]
        if self._queue and not self._queue[0][0].done():
            ends.append(self._queue[0][3])
        self._timer = self._loop.call_at(min(ends), self._expire) if ends else None

    def _expire(self) -> None:
        now = self._loop.time()
        for batch in self._sent.values():
            late = [waiting for waiting in batch if waiting[3] <= now and not waiting[0].done()]
            if not late:
                continue
            sent = batch.link is not None
            batch.give_up(self._loop, self._deadline)
            reason = None if sent else batch.trouble
            for future, *_ in late:
                future.set_exception(timed_out(self._deadline, reason, sent=sent))
        for future, _, _, ends in self._queue:
            if ends <= now and not future.done():
                future.set_exception(timed_out(self._deadline))
        while self._queue and self._queue[0][0].done():
            self._queue.popleft()
        self._watch()
