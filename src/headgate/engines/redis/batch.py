"""Batches: requests that are sent in one call, and the distribution of their answers.

`PendingBatch` is for any number of any requests. `SingleCall` is for one plain request that is sent alone, as most are
under low load: its caller waits for the answer, so every step here adds latency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...decision import Decision
from ...errors import EngineError, HeadgateError
from ..base import Hooks
from .codec import NUMBERS_PER_STEP
from .failures import copy_for_caller
from .packed_requests import PlainRequest, template_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from ...algorithms import Answer
    from .codec import Reply
    from .link import Link
    from .operations import Operations
    from .packed_requests import PackedRequest, PlainTemplate
    from .scripts import Words
    from .sending import RoutedCommand

Waiting: TypeAlias = tuple[
    "asyncio.Future[Decision]", "PackedRequest | PlainRequest", "Operations", float
]
"""The caller's future, its request, the operations that pack it, and its deadline."""


NO_HOOKS: Final = Hooks(lambda decision, _: decision, may_skip=lambda: True)
"""For limits that no guard is interested in."""


class PendingBatch(list[Waiting]):
    """Requests that are sent together."""

    link: Link | None = None
    """The link they were sent on, until an answer has come."""
    trouble: Exception | None = None
    """The last problem on the way."""
    since: float = 0.0
    """When they were sent."""
    form: PlainTemplate | None = None
    """The common form, if all requests are plain and of one limit; set when they are packed."""
    words: Words | None = None
    """The first words of their call when it was packed; the dialect may have changed since."""

    def packed(self) -> bytes:
        """The packed call that decides all of them."""
        parts, operations = [waiting[1] for waiting in self], self[0][2]
        self.form = form = self.form or template_of(parts)
        self.words = operations.words(form)
        return operations.packed(parts, form, self.words)

    def routed(self, slot: int) -> RoutedCommand:
        """The same call as a command that can be repaired and sent again."""
        return self[0][2].routed(slot, [waiting[1] for waiting in self], self.form, self.words)

    def answer(self, reply: Any) -> list[Waiting]:
        """Resolve all futures; returns the requests whose calendar has to be sent again."""
        codec, form = self[0][2].codec, self.form
        try:
            if form is None:
                codec.check(reply, sum([len(waiting[1].rules) for waiting in self]))
            elif (answers := codec.plain_answers(reply, len(self))) is not None:
                self._answer_alike(form, answers)
                return []
        except HeadgateError as error:
            fail(self, error)
            return []
        return self._answer_each(reply)

    def _answer_alike(self, form: PlainTemplate, answers: Iterable[Answer]) -> None:
        """For plain requests of one limit: by far the most common case, so it is kept short."""
        limit, context = form.limit, form.context
        after, _, may_skip = form.hooks or NO_HOOKS
        skip = may_skip is not None and may_skip()
        plain: Any = self
        for (future, (key, _, _, ticket), _, _), its_answer in zip(plain, answers, strict=True):
            if not future.done():
                decision = Decision(key, limit, its_answer, context)
                if not (skip and its_answer[0]):
                    skip = False
                    decision = after(decision, ticket)
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
                    fail_one(waiting, error)
                else:
                    if decision is None:
                        stale.append(waiting)
                    else:
                        hooks = part.hooks
                        if hooks is not None:
                            decision = hooks.after(decision, part.ticket)
                        future.set_result(decision)
            at += NUMBERS_PER_STEP * len(part.rules)
        return stale

    def drop_abandoned(self) -> bool:
        """Drop callers that have stopped waiting, before sending again; returns whether there were any.

        A cancelled caller may have given its request back by now, so it must not be sent after that.
        """
        here = [waiting for waiting in self if not waiting[0].done()]
        if len(here) == len(self):
            return False
        self[:] = here
        self.words = None
        return True

    def mark_sent(self, link: Link, now: float) -> None:
        """Record the link and the time of sending."""
        self.link, self.since = link, now

    def give_up(self, deadline: float) -> None:
        """Close a link that may be dead, after it has had time to answer: other callers wait on it, too."""
        if self.link is not None:
            self.link.suspect(self.since + deadline / 2)


class SingleCall(PendingBatch):
    """One plain request: a batch of one, without the loops."""

    def packed(self) -> bytes:
        """The packed call that decides it."""
        plain: Any = self[0]
        _, (_, name, form, _), operations, _ = plain
        self.form = form
        self.words = words = operations.words(form)
        call: bytes = operations.codec.packed_take(words, form, (name,))
        return call

    def answer(self, reply: Any) -> list[Waiting]:
        """Resolve its future."""
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
            key, _, form, ticket = plain
            decision = Decision(key, form.limit, its_answer, form.context)
            if form.hooks is not None:
                decision = form.hooks.after(decision, ticket)
            future.set_result(decision)
        return []


def fail(batch: list[Waiting], error: Exception) -> None:
    """Give every caller of a batch its own copy of the error."""
    for waiting in batch:
        if not waiting[0].done():
            fail_one(waiting, copy_for_caller(error))


def fail_one(waiting: Waiting, error: Exception) -> None:
    """Fail one caller, unless a hook has an answer."""
    future, part, *_ = waiting
    hooks = part.hooks
    if hooks is None or hooks.failed is None or not isinstance(error, EngineError):
        future.set_exception(error)
        return
    try:
        decision = hooks.failed(error, part.ticket)
    except Exception as raised:  # noqa: BLE001 - the caller gets it
        future.set_exception(raised)
    else:
        future.set_result(decision)
