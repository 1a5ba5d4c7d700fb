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
from typing import TYPE_CHECKING, Any, TypeAlias

from ...decision import Decision
from ...errors import HeadgateError, UsageError
from .codec import MAX_RULES, NUMBERS_PER_STEP, Plain, form_of
from .failures import timed_out

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from ...algorithms import Answer
    from .carry import Errand
    from .codec import Form, Part, Reply
    from .link import Link
    from .operations import Operations
    from .scripts import Words

Waiting: TypeAlias = tuple["asyncio.Future[Decision]", "Part | Plain", "Operations", float]
"""Who waits, for what, in whose words, and until when."""


class Batch(list[Waiting]):
    """Requests that travel together."""

    link: Link | None = None
    """The link they were sent on, as long as no answer has come."""
    trouble: Exception | None = None
    """What went wrong on the way, last."""
    since: float = 0.0
    """When they were sent."""
    over: bool = False
    """Whether everybody has been answered."""
    form: Form | None = None
    """The form of all requests, if they are plain and of one limit; known when they have been packed."""
    words: Words | None = None
    """What their call began with when it was packed; the dialect may have changed since."""

    def packed(self) -> bytes:
        """The call that decides all of them, as it is sent."""
        parts, operations = [waiting[1] for waiting in self], self[0][2]
        self.form = form = form_of(parts)
        self.words = operations.words(form)
        return operations.packed(parts, form, self.words)

    def errand(self, slot: int) -> Errand:
        """The same as an errand, for who has to carry it out with care."""
        return self[0][2].errand(slot, [waiting[1] for waiting in self], self.form, self.words)

    def answer(self, reply: Any) -> list[Waiting]:
        """Give everyone their answer; returns those whose calendar has to be sent again."""
        codec, form = self[0][2].codec, self.form
        try:
            if form is None:
                codec.check(reply, sum([len(waiting[1].keys) for waiting in self]))
            elif (answers := codec.plain_answers(reply, len(self))) is not None:
                self._answer_alike(form, answers)
                return []
        except HeadgateError as error:
            fail(self, error)
            return []
        return self._answer_each(reply)

    def _answer_alike(self, form: Form, answers: Iterable[Answer]) -> None:
        """Plain requests of one limit: nearly everything is, so this is short."""
        limit, context, witness = form.limit, form.context, form.witness
        plain: Any = self
        for (future, (key, _, _, given), _, _), its_answer in zip(plain, answers, strict=True):
            if not future.done():
                decision = Decision((key, limit, its_answer, context))
                if witness is not None:
                    witness(decision, given)
                future.set_result(decision)

    def _answer_each(self, reply: Reply) -> list[Waiting]:
        at = 1
        stale: list[Waiting] = []
        for waiting in self:
            future, part, operations, _ = waiting
            if not future.done():
                try:
                    decision = operations.codec.decision(part, reply, at)
                except HeadgateError as error:
                    future.set_exception(error)
                else:
                    if decision is None:
                        stale.append(waiting)
                    else:
                        if type(part) is Plain and part[2].witness is not None:
                            part[2].witness(decision, part[3])
                        future.set_result(decision)
            at += NUMBERS_PER_STEP * len(part.keys)
        return stale

    def leave_on(self, link: Link, now: float) -> None:
        """Note on what, and when, they are sent."""
        self.link, self.since = link, now

    def give_up(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Close a link that may have died in silence, as soon as it has had time: others wait on it, too."""
        if self.link is None:
            return
        if loop.time() >= self.since + deadline / 2:
            self.link.abort()
        else:
            loop.call_at(self.since + deadline / 2, self.give_up, loop, deadline)


class Lone(Batch):
    """One plain request: the same without loops, for nobody but its caller is at work meanwhile."""

    def packed(self) -> bytes:
        """The call that decides it, as it is sent."""
        _, part, operations, _ = self[0]
        self.form = form = part[2]  # type: ignore[index]  # It is plain.
        self.words = words = operations.words(form)
        return operations.codec.packed_take(words, form, (part[1],))  # type: ignore[index]

    def answer(self, reply: Any) -> list[Waiting]:
        """Give it its answer."""
        future, part, operations, _ = self[0]
        try:
            its_answer = operations.codec.plain_answer(reply)
        except HeadgateError as error:
            fail(self, error)
            return []
        if its_answer is None:
            return self._answer_each(reply)
        if not future.done():
            key, _, form, given = part  # type: ignore[misc]  # It is plain.
            decision = Decision((key, form.limit, its_answer, form.context))
            if form.witness is not None:
                form.witness(decision, given)
            future.set_result(decision)
        return []


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
        self._sent: deque[Batch] = deque()
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
        batch.over = True
        self._in_flight -= 1
        sent = self._sent
        while sent and sent[0].over:
            sent.popleft()
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
        self._sent.append(batch)
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
        half = (waiting + sum(map(len, self._sent)) + 1) // 2
        return half if waiting - half >= WORTHWHILE else waiting

    def _watch(self) -> None:
        """Wake when the first who waits runs out of time; those with less than usual wake us themselves."""
        if self._timer is not None:
            self._timer.cancel()
        while self._sent and all(waiting[0].done() for waiting in self._sent[0]):
            self._sent.popleft()
        waiting = [
            *(self._sent[0] if self._sent else ()),
            *([self._queue[0]] if self._queue else ()),
        ]
        ends = [until for future, _, _, until in waiting if not future.done()]
        self._timer = self._loop.call_at(min(ends), self._expire) if ends else None

    def _expire(self) -> None:
        now = self._loop.time()
        for batch in self._sent:
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


def fail(batch: list[Waiting], error: Exception) -> None:
    """Tell everyone in a batch what went wrong."""
    for future, *_ in batch:
        if not future.done():
            future.set_exception(error)
