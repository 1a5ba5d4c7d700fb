"""Batches: requests that travel in one call, from the words that are sent to the answer of each.

`Batch` is for any number of any requests. `Lone` is for one plain request that travels by itself, as nearly all do when there is little to
do: its caller can do nothing until it is answered, so all that is done here is felt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ...decision import Decision
from ...errors import HeadgateError
from .codec import NUMBERS_PER_STEP, Plain, form_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

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
                decision = Decision(key, limit, its_answer, context)
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
    """One plain request: the same as a batch of one, without the loops."""

    def packed(self) -> bytes:
        """The call that decides it, as it is sent."""
        plain: Any = self[0]
        _, (_, name, form, _), operations, _ = plain
        self.form = form
        self.words = words = operations.words(form)
        call: bytes = operations.codec.packed_take(words, form, (name,))
        return call

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
            plain: Any = part
            key, _, form, given = plain
            decision = Decision(key, form.limit, its_answer, form.context)
            if form.witness is not None:
                form.witness(decision, given)
            future.set_result(decision)
        return []


def fail(batch: list[Waiting], error: Exception) -> None:
    """Tell everyone in a batch what went wrong."""
    for future, *_ in batch:
        if not future.done():
            future.set_exception(error)
