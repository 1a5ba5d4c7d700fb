"""The batcher: requests of one event loop tick are sent as one script call.

Each caller has a future and one deadline, which includes queueing. At most `max_in_flight` calls to a server are in
flight; requests that come meanwhile wait for the next one, so batches grow with the load. A caller that is cancelled
before its batch is sent is left out; one that is cancelled later does not affect the others.

**A single request does not wait.** A request that comes right after the answer to a single request is sent at once:
nothing else is waiting, and the link has just worked. All others are sent at the end of the tick, with the other
requests of that tick and after the loop has checked whether the link was closed, or as soon as a batch is full.

**Two halves.** A server processes everything it finds on a connection before it sends the first answer; client and
server would take turns being idle. So one call is sent at a time, with at most half of all pending requests: the server
decides one half while the client handles the answers to the other.

**Deadlines are kept on a busy machine.** Timers are late there. So they are set earlier by as much as they were late
recently, but by no more than a quarter of a deadline.

**The queue is bounded** by what can be answered before the deadline, as fast as the last calls were. Requests beyond
that are refused at once: they would wait in vain, and hundreds that time out in the same moment are late for their
fallback, too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from ...errors import UsageError
from .batch import PendingBatch, SingleCall, fail, fail_one
from .codec import MAX_RULES
from .failures import timed_out, too_many_wait
from .packed_requests import PlainRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ...decision import Decision
    from .batch import Waiting
    from .operations import Operations
    from .packed_requests import PackedRequest

Sender: TypeAlias = "Callable[[int, PendingBatch], None]"
FRESH = 0.005
"""For this many seconds after an answer, a link is assumed to be open without another check."""
MAX_QUEUED = 10_000
"""The most that may be queued, however fast the server is."""
MOST_EARLY = 0.25
"""The largest part of a deadline that a busy machine may cost."""
FADES = 0.9
"""How much of a timer's lateness is still expected of the next one, if that was on time."""
MIN_SEPARATE_BATCH = 16
"""The minimum for a separate call, which has a cost; fewer requests go with the rest."""


class Batcher:
    """Collects requests for one slot (or for all, without slots) and sends them together."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slot: int,
        send: Sender,
        limits: tuple[int, int, float],
        on_first_answer: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._slot = slot
        self._send = send
        self._max_batch, self._max_in_flight, self._deadline = limits
        self._on_first_answer = on_first_answer
        self._has_answered = False
        self._queue: deque[Waiting] = deque()
        self._sent: dict[int, PendingBatch] = {}
        """Batches without an answer whose deadlines are not over, in the order they were sent, by their `id`."""
        self._in_flight = 0
        self._scheduled = False
        self._send_at_once_until = 0.0
        """Until when a new request is sent at once; 0 while anything is queued or in flight."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the timer was to fire."""
        self._early = 0.0
        """By how much timers are set earlier than deadlines."""
        self._took = deque([0.0] * (self._max_in_flight + 1), maxlen=self._max_in_flight + 1)
        """Seconds that the last calls took: one more than can be in flight."""
        self._room = MAX_QUEUED
        """How many requests may wait."""

    def __len__(self) -> int:
        return len(self._queue)

    def ask(
        self, operations: Operations, part: PackedRequest | PlainRequest, ends: float | None = None
    ) -> asyncio.Future[Decision]:
        """Queue a request; the future gets its answer. `ends` is for callers with less time than usual."""
        loop, queue = self._loop, self._queue
        future: asyncio.Future[Decision] = loop.create_future()
        if self._scheduled and ends is None:  # Most requests are not the first of their tick.
            queue.append((future, part, operations, loop.time() + self._deadline))
            if len(queue) >= self._max_batch:
                self._send_full()
            return future
        now = loop.time()
        if ends is None:
            ends = now + self._deadline
        else:
            timer = loop.call_at(ends, self._expire)
            future.add_done_callback(lambda _: timer.cancel())
        waiting = (future, part, operations, ends)
        if now < self._send_at_once_until:
            self._dispatch((SingleCall if type(part) is PlainRequest else PendingBatch)((waiting,)))
            if self._timer is None:
                self._watch()
            return future
        self._send_at_once_until = 0.0
        queue.append(waiting)
        if not self._scheduled:
            self._schedule()
        if len(queue) >= self._max_batch:
            self._send_full()
        return future

    def _schedule(self) -> None:
        """Send what is queued at the end of this tick."""
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _send_full(self) -> None:
        """Send a full batch before the tick ends; refuse the last request if it would wait in vain."""
        self._send_next(self._max_batch)
        self._refuse_excess()

    def _refuse_excess(self) -> None:
        """Refuse the last requests in the queue if they would wait in vain."""
        while len(self._queue) > self._room:
            waiting = self._queue.pop()
            if not waiting[0].done():
                fail_one(waiting, too_many_wait(self._room))

    def _bound_queue(self) -> None:
        """Work out how many requests may wait: those that are certain to be answered in time, and always a full batch.

        The last of them needs a call for itself, and another one is kept in reserve. The fastest of the last calls
        counts: if this process was busy with something else, all calls that were in flight took that long.
        """
        calls = self._max_in_flight * (self._deadline / max(min(self._took), 1e-6) - 2)
        self._room = int(min(max(calls, 1) * self._max_batch, MAX_QUEUED))

    def done(self, batch: PendingBatch, *, answered: bool = False) -> None:
        """Called when a call has returned: send the next one before distributing the answers, to keep the server busy.

        `answered` means that an answer has just arrived on its link.
        """
        self._in_flight -= 1
        self._sent.pop(id(batch), None)
        now = self._loop.time()
        if answered:
            self._took.append(now - batch.since)
            self._bound_queue()
            if not self._has_answered:
                self._has_answered = True
                self._on_first_answer()
        if self._queue:
            self._flush()
        elif answered and not self._in_flight and len(batch) == 1:
            self._send_at_once_until = now + FRESH

    def use_deadline(self, deadline: float) -> None:
        """Use this deadline for new requests."""
        self._deadline = deadline
        self._early = min(self._early, MOST_EARLY * deadline)
        self._bound_queue()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        """Called at the end of a tick."""
        self._scheduled = False
        self._send_next(self._half())
        if self._queue and self._in_flight < self._max_in_flight:
            self._schedule()
        elif len(self._queue) > self._room:  # Answers that have come are distributed before.
            self._loop.call_soon(self._refuse_excess)
        if self._timer is None and (self._queue or self._sent):
            self._watch()

    def _send_next(self, most: int) -> None:
        """Send the next batch, unless too many are in flight."""
        if self._queue and self._in_flight < self._max_in_flight:
            batch = self._next_batch(min(most, self._max_batch))
            if batch:
                self._dispatch(batch)

    def _dispatch(self, batch: PendingBatch) -> None:
        """Send a batch; if it cannot be packed, send its requests one by one to find the culprit."""
        try:
            self._send(self._slot, batch)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            if len(batch) == 1:
                fail(batch, error)
                return
            for waiting in batch:
                self._dispatch(PendingBatch([waiting]))
            return
        self._in_flight += 1  # Counted until the answer arrives.
        self._sent[id(batch)] = batch
        self._send_at_once_until = 0.0

    def _next_batch(self, most: int) -> PendingBatch:
        """The first requests of the queue that are plain, or that are not: plain ones have a faster call."""
        batch = self._next_alike(most)
        if batch is not None:
            return batch
        batch = PendingBatch()
        rules: set[bytes] = set()
        last = kind = None
        queue, room = self._queue, most
        others: list[Waiting] = []
        while queue and room:
            waiting = queue.popleft()
            future, part, _, _ = waiting
            if future.done():  # Cancelled or expired.
                continue
            if type(part) is not kind:
                if kind is not None:
                    others.append(waiting)
                    continue
                kind = type(part)
            shared = part[2] if type(part) is PlainRequest else part
            if shared is not last:  # Most are of one limit and share its form.
                last = shared
                rules.update(shared.rules)
                if len(rules) > MAX_RULES:
                    if batch:
                        queue.appendleft(waiting)
                        break
                    too_many = (
                        f"a request may have at most {MAX_RULES} different limits, not {len(rules)}"
                    )
                    fail_one(waiting, UsageError(too_many))
                    rules.clear()
                    continue
            batch.append(waiting)
            room -= 1
        queue.extendleft(reversed(others))
        return batch

    def _next_alike(self, most: int) -> PendingBatch | None:
        """The first requests, if all of them are plain, of one limit and still waited for: most often they are."""
        queue = self._queue
        first = queue[0][1]
        if type(first) is not PlainRequest:
            return None
        form = first[2]
        taken = [queue.popleft() for _ in range(min(most, len(queue)))]
        for future, part, _, _ in taken:
            if type(part) is not PlainRequest or part[2] is not form or future.done():
                queue.extendleft(reversed(taken))
                return None
        batch = PendingBatch(taken)
        batch.form = form
        return batch

    def _half(self) -> int:
        """How many to send now: half of all pending requests, or all queued ones if few would be left."""
        waiting = len(self._queue)
        half = (waiting + sum(map(len, self._sent.values())) + 1) // 2
        return half if waiting - half >= MIN_SEPARATE_BATCH else waiting

    def _watch(self) -> None:
        """Set a timer for the first deadline; requests with less time than usual have their own."""
        if self._timer is not None:
            self._timer.cancel()
        while self._queue and self._queue[0][0].done():
            self._queue.popleft()
        ends: list[float] = []
        now = self._loop.time() + self._early
        for batch in list(self._sent.values()):
            waiting = [until for future, _, _, until in batch if until > now or not future.done()]
            if waiting:
                ends += waiting
            else:
                del self._sent[id(batch)]
        if self._queue:
            ends.append(self._queue[0][3])
        if ends:
            self._due = min(ends) - self._early
            self._timer = self._loop.call_at(self._due, self._expire_due)
        else:
            self._timer = None

    def _expire_due(self) -> None:
        late = self._loop.time() - self._due
        self._expire()  # What this timer was set for.
        self._early = min(max(late, FADES * self._early), MOST_EARLY * self._deadline)

    def _expire(self) -> None:
        now = self._loop.time() + self._early
        for batch in self._sent.values():
            late = [waiting for waiting in batch if waiting[3] <= now]
            if not late:
                continue
            sent = batch.link is not None
            batch.give_up(self._deadline)  # Also if all its callers have left before.
            reason = None if sent else batch.trouble
            for waiting in late:
                if not waiting[0].done():
                    fail_one(waiting, timed_out(self._deadline, reason, sent=sent))
        for waiting in self._queue:
            if waiting[3] <= now and not waiting[0].done():
                fail_one(waiting, timed_out(self._deadline))
        self._watch()
