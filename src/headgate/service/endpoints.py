"""The endpoints that must be fast, as functions from a body to a reply. The protocol and the ASGI routes both call them.

An endpoint returns its reply, or a `Later`: an engine that does I/O has made a future, and nobody has to make a task to wait for it. It
never raises for what a caller sent or for what a store did not answer: those are replies, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from ..algorithms import NEVER
from ..decision import NO_LIMIT, Context, Decision
from ..engines.base import Run
from ..errors import EngineError, HeadgateError, UsageError
from . import wire
from .batches import Alike, read_batch, within_batch
from .checks import BANNED, Checks, usage_problem
from .headers import decision_lines, process_time_line
from .incoming import incoming_from
from .problems import FAILED, JSON, ProblemError, Reply, store_unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..rules.request import Request
    from .node import Node
    from .wire import Check


class Later(NamedTuple):
    """A reply that has to wait: when the future is done, `finish` makes the reply of it."""

    future: asyncio.Future[Any]
    finish: Callable[[asyncio.Future[Any]], Reply]


Endpoint: TypeAlias = Callable[[bytes, bool], Reply | Later]
"""`(body, whether a denial is told as 429)`."""

OK: Final = 200
DENIED: Final = 429
PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9/_.~-]{0,1000}")
"""Paths that nobody can read in two ways, without looking further."""
BAD_PATH: Final = Decision("", NO_LIMIT, (False, 0, NEVER, 0, 0), Context("closed"))
"""The answer to a path that can be, where the settings say so."""
_CHECK: Final = msgspec.json.Decoder(wire.Check)
_DECIDE: Final = msgspec.json.Decoder(wire.Decide)


class Endpoints:
    """The fast endpoints of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = logging.getLogger("headgate.service")
        self._incoming = incoming_from(node.settings.trusted_proxies)
        self.checks = Checks(node)

    def check(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001 - hot
        """`POST /check`."""
        began_ns = perf_counter_ns()
        try:
            check, unknown = wire.read(_CHECK, body)
            if unknown:
                self._node.recorder.record_ignored_fields(unknown)
            outcome = self.checks.take(check)
        except (ProblemError, HeadgateError) as error:
            return self._trouble(error, began_ns)
        if isinstance(outcome, Decision):
            return self.decided(outcome, as_status, began_ns)
        return self._later(outcome, as_status, began_ns)

    def batch(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /check/batch`: each check on its own, answers in order; what is wrong with one is told in its place."""
        began_ns = perf_counter_ns()
        try:
            pieces = read_batch(body, self._node.recorder.record_ignored_fields)
        except ProblemError as error:
            return error.reply(perf_counter_ns() - began_ns)
        outcomes: list[Any] = []
        for piece in pieces:
            if isinstance(piece, Alike):
                run = self.checks.take_run(piece)
                outcomes.extend(map(self._taken, piece.one_by_one()) if run is None else run)
            else:
                outcomes.append(self._taken(piece))
        waiting = [one for one in outcomes if isinstance(one, asyncio.Future)]
        if waiting:
            return self._batch_later(outcomes, waiting, began_ns)
        return self._batch_reply(outcomes, began_ns)

    def _taken(
        self, check: Check | ProblemError
    ) -> Decision | asyncio.Future[Decision] | Exception:
        """What comes of one check of a batch: a decision, now or later, or what is wrong with it."""
        if isinstance(check, ProblemError):
            return check
        try:
            outcome = self.checks.take(check)
        except (ProblemError, HeadgateError) as error:
            return error
        return outcome if isinstance(outcome, Decision) else _future_of(outcome)

    def decide(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /decide`: a request's attributes, put to the rules."""
        began_ns = perf_counter_ns()
        try:
            asked, unknown = wire.read(_DECIDE, body)
            wire.require_few(asked.descriptors)
            if unknown:
                self._node.recorder.record_ignored_fields(unknown)
            request = self._incoming(asked)
            reason = None if PLAIN_PATH.fullmatch(request.path) else request.path_refused
            if reason is not None and self._node.settings.bad_paths == "deny":
                return self.decided(BAD_PATH, as_status, began_ns, reason)
            denied = self._banned(request)
            if denied is not None:
                return self.decided(denied, as_status, began_ns)
            outcome = self._node.limiter.decide_request_nowait(request)
        except (ProblemError, HeadgateError) as error:
            return self._trouble(error, began_ns)
        if isinstance(outcome, Decision):
            return self.decided(outcome, as_status, began_ns, reason)
        return self._later(outcome, as_status, began_ns, reason)

    def _banned(self, request: Request) -> Decision | None:
        """The denial of somebody whom people have locked out; rules are matched for it only if anybody is."""
        node = self._node
        if not node.board.view.bans or node.rules is None:
            return None
        return self.checks.banned(node.rules.current.charges(request))

    def decided(
        self,
        decision: Decision,
        as_status: bool,  # noqa: FBT001
        began_ns: int,
        reason: str | None = None,
    ) -> Reply:
        """The reply that tells a decision; it is recorded here."""
        took_ns = perf_counter_ns() - began_ns
        node = self._node
        node.recorder.record(decision, took_ns)
        if not node.store.up:
            node.store.heard(decision)
        if decision.context is BANNED:
            reason = self.checks.reason(decision)
        status = DENIED if as_status and not decision.answer[0] else OK
        return (
            status,
            decision_lines(decision, took_ns),
            wire.encode(wire.answer_of(decision, reason)),
        )

    def _later(
        self,
        outcome: Awaitable[Decision],
        as_status: bool,  # noqa: FBT001
        began_ns: int,
        reason: str | None = None,
    ) -> Later:
        def finish(future: asyncio.Future[Decision]) -> Reply:
            try:
                return self.decided(future.result(), as_status, began_ns, reason)
            except Exception as error:  # noqa: BLE001 - whoever waits gets a reply, whatever it was
                return self._trouble(error, began_ns)

        return Later(_future_of(outcome), finish)

    def _batch_later(
        self, outcomes: list[Any], waiting: list[asyncio.Future[Decision]], began_ns: int
    ) -> Later:
        """A batch of which some answers are still on their way."""
        left = len(waiting)
        all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_answer(_: object) -> None:
            nonlocal left
            left -= 1
            if not left and not all_there.done():
                all_there.set_result(None)

        for future in waiting:
            future.add_done_callback(on_answer)
        return Later(all_there, lambda _: self._batch_reply(outcomes, began_ns))

    def _batch_reply(self, outcomes: list[Any], began_ns: int) -> Reply:
        """The answers in order; each is recorded with its share of the time."""
        recorder, store = self._node.recorder, self._node.store
        took_ns = perf_counter_ns() - began_ns
        share_ns = took_ns // sum(len(one.keys) if isinstance(one, Run) else 1 for one in outcomes)
        answers: list[Any] = []
        for outcome in outcomes:
            if isinstance(outcome, Run):
                recorder.record_run(outcome, share_ns)
                answers += wire.answers_of(outcome)
            else:
                try:
                    decision = outcome if isinstance(outcome, Decision) else _result(outcome)
                except Exception as error:  # noqa: BLE001 - as above
                    problem = within_batch(self.problem(error), len(answers))
                    answers.append({"error": problem.as_dict()})
                    continue
                recorder.record(decision, share_ns)
                answers.append(wire.answer_of(decision, self.checks.reason(decision)))
                if not store.up:
                    store.heard(decision)
        return (OK, JSON + process_time_line(took_ns), wire.encode({"decisions": answers}))

    def _trouble(self, error: Exception, began_ns: int) -> Reply:
        return self.problem(error).reply(perf_counter_ns() - began_ns)

    def problem(self, error: Exception) -> ProblemError:
        """The problem that an error is to the caller; an outage is noted on the way."""
        if isinstance(error, ProblemError):
            return error
        if isinstance(error, UsageError):
            return usage_problem(error)
        if isinstance(error, EngineError):
            self._node.store.failed(error)
            self._node.recorder.record_failure(error)
            return store_unavailable(
                "the store that keeps the counts does not answer; nothing is known"
            )
        self._log.error("a check failed: %s", error, exc_info=error)
        return ProblemError(FAILED, "the check could not be made; the log of the service says why")


def _future_of(outcome: Awaitable[Decision]) -> asyncio.Future[Decision]:
    """What to wait with: mostly a future already, and then nothing has to be found out about it."""
    return outcome if isinstance(outcome, asyncio.Future) else asyncio.ensure_future(outcome)


def _result(outcome: Any) -> Decision:
    """What came of a check that had to wait, or was refused."""
    if isinstance(outcome, Exception):
        raise outcome
    found: Decision = outcome.result()
    return found
