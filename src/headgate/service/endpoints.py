"""The endpoints that must be fast, as functions from a body to a reply. The protocol and the ASGI routes both call them.

An endpoint returns its reply, or a `Later`: an engine that does I/O has made a future, and nobody has to make a task to wait for it. It
never raises for what a caller sent or for what a store did not answer: those are replies, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from ipaddress import ip_network
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from ..decision import Decision
from ..errors import EngineError, HeadgateError, UsageError
from ..rules.addresses import client_address
from ..rules.request import Request as Incoming
from . import wire
from .checks import BANNED, Checks, usage_problem
from .headers import decision_lines, process_time_line
from .problems import BAD_VALUE, FAILED, JSON, ProblemError, Reply, store_unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .checks import Bound
    from .node import Node


class Later(NamedTuple):
    """A reply that has to wait: when the future is done, `finish` makes the reply of it."""

    future: asyncio.Future[Any]
    finish: Callable[[asyncio.Future[Any]], Reply]


Endpoint: TypeAlias = Callable[[bytes, bool], Reply | Later]
"""`(body, whether a denial is told as 429)`."""

OK: Final = 200
DENIED: Final = 429
_read_batch = msgspec.json.Decoder(wire.Batch)
_read_raw_batch = msgspec.json.Decoder(wire.RawBatch)


class Endpoints:
    """The fast endpoints of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = logging.getLogger("headgate.service")
        self._proxies = tuple(map(ip_network, node.settings.trusted_proxies))
        self.checks = Checks(node)

    def check(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001 - hot
        """`POST /check`."""
        began_ns = perf_counter_ns()
        try:
            check = wire.read_check(body)
            checks = self.checks
            key, cost = check.key, check.cost
            bound = checks.bound(check)
            colons = 1 + bound.fields + key.count(":")
            if cost is UNSET:
                cost = 1
            else:
                colons += 1
            if body.count(b":") != colons or b"\\" in body:
                self._read_twice(body)
            outcome = checks.take(key, bound, cost)
        except (ProblemError, HeadgateError) as error:
            return self._trouble(error, began_ns)
        if isinstance(outcome, Decision):
            return self.decided(outcome, as_status, began_ns)
        return self._later(outcome, as_status, began_ns)

    def batch(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /check/batch`: each check on its own, answers in order; what is wrong with one is told in its place."""
        began_ns = perf_counter_ns()
        try:
            asked = self._read_batch(body)
        except ProblemError as error:
            return error.reply(perf_counter_ns() - began_ns)
        answers: list[Any] = []
        waiting: dict[int, Awaitable[Decision]] = {}
        take, answer = self.checks.take, self._answer
        for at, one in enumerate(asked):
            if isinstance(one, ProblemError):
                answers.append({"error": one.as_dict()})
                continue
            try:
                outcome = take(*one)
            except (ProblemError, HeadgateError) as error:
                answers.append(self._item_trouble(error, at))
                continue
            if isinstance(outcome, Decision):
                answers.append(answer(outcome, began_ns))
            else:
                waiting[at] = outcome
                answers.append(None)
        if waiting:
            return self._batch_later(answers, waiting, began_ns)
        return _batch_reply(answers, began_ns)

    def decide(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /decide`: a request's attributes, put to the rules."""
        began_ns = perf_counter_ns()
        try:
            asked, unknown = wire.read_decide(body)
            if unknown:
                self._node.recorder.record_ignored_fields(unknown)
            outcome = self._node.limiter.decide_request_nowait(self._incoming(asked))
        except (ProblemError, HeadgateError) as error:
            return self._trouble(error, began_ns)
        if isinstance(outcome, Decision):
            return self.decided(outcome, as_status, began_ns)
        return self._later(outcome, as_status, began_ns)

    def _incoming(self, asked: wire.Decide) -> Incoming:
        """A request as rules see it. The address is the client's, as far as trusted proxies tell."""
        address = asked.ip
        if self._proxies and address is not None:
            forwarded = [
                value for name, value in asked.headers.items() if name.lower() == "x-forwarded-for"
            ]
            address = client_address(address, forwarded, self._proxies) or address
        return Incoming(
            asked.method,
            asked.path,
            address,
            asked.user_id,
            asked.api_key,
            asked.host,
            asked.headers,
            tuple(asked.descriptors),
            asked.cost,
        )

    def decided(self, decision: Decision, as_status: bool, began_ns: int) -> Reply:  # noqa: FBT001
        """The reply that tells a decision; it is recorded here."""
        took_ns = perf_counter_ns() - began_ns
        node = self._node
        node.recorder.record(decision, took_ns)
        if not node.store.up:
            node.store.answered()
        reason = None if decision[3] is not BANNED else self.checks.reason(decision)
        status = DENIED if as_status and not decision[2][0] else OK
        return (
            status,
            decision_lines(decision, took_ns),
            wire.encode(wire.answer_of(decision, reason)),
        )

    def _later(self, outcome: Awaitable[Decision], as_status: bool, began_ns: int) -> Later:  # noqa: FBT001
        def finish(future: asyncio.Future[Decision]) -> Reply:
            try:
                return self.decided(future.result(), as_status, began_ns)
            except Exception as error:  # noqa: BLE001 - whoever waits gets a reply, whatever it was
                return self._trouble(error, began_ns)

        return Later(asyncio.ensure_future(outcome), finish)

    def _batch_later(
        self, answers: list[Any], waiting: dict[int, Awaitable[Decision]], began_ns: int
    ) -> Later:
        """A batch of which some answers are still on their way."""
        left = len(waiting)
        all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_answer(at: int, future: asyncio.Future[Decision]) -> None:
            nonlocal left
            try:
                answers[at] = self._answer(future.result(), began_ns)
            except Exception as error:  # noqa: BLE001 - as above
                answers[at] = self._item_trouble(error, at)
            left -= 1
            if not left and not all_there.done():
                all_there.set_result(None)

        for at, outcome in waiting.items():
            asyncio.ensure_future(outcome).add_done_callback(partial(on_answer, at))
        return Later(all_there, lambda _: _batch_reply(answers, began_ns))

    def _answer(self, decision: Decision, began_ns: int) -> wire.Answer:
        node = self._node
        node.recorder.record(decision, perf_counter_ns() - began_ns)
        if not node.store.up:
            node.store.answered()
        return wire.answer_of(
            decision, None if decision[3] is not BANNED else self.checks.reason(decision)
        )

    def _read_batch(self, body: bytes) -> list[tuple[str, Bound, int] | ProblemError]:
        """What each check asks, or what is wrong with it."""
        try:
            checks = _read_batch.decode(body).checks
        except wire.UNREADABLE:
            return self._read_bad_batch(body)
        _require_size(len(checks))
        bound = self.checks.bound
        asked: list[tuple[str, Bound, int] | ProblemError] = []
        colons = 1
        try:
            for check in checks:
                found, cost, key = bound(check), check.cost, check.key
                colons += 1 + found.fields + key.count(":")
                if cost is UNSET:
                    cost = 1
                else:
                    colons += 1
                asked.append((key, found, cost))
        except (ProblemError, UsageError):
            return self._read_bad_batch(body)
        return asked if wire.looks_plain(body, colons) else self._read_bad_batch(body)

    def _read_bad_batch(self, body: bytes) -> list[tuple[str, Bound, int] | ProblemError]:
        """One check after the other, so that a bad one does not spoil the others."""
        batch, unknown = wire.read(_read_raw_batch, body)
        self._node.recorder.record_ignored_fields(unknown)
        _require_size(len(batch.checks))
        return [self._read_item(bytes(raw), at) for at, raw in enumerate(batch.checks)]

    def _read_item(self, raw: bytes, at: int) -> tuple[str, Bound, int] | ProblemError:
        try:
            check = wire.read_check(raw)
            self._read_twice(raw)
            return check.key, self.checks.bound(check), 1 if check.cost is UNSET else check.cost
        except (ProblemError, UsageError) as error:
            return _within_batch(
                usage_problem(error) if isinstance(error, UsageError) else error, at
            )

    def _read_twice(self, body: bytes) -> None:
        """Look closely at a body that is not plain."""
        unknown = wire.unknown_fields(wire.read_twice(body), wire.Check)
        if unknown:
            self._node.recorder.record_ignored_fields(unknown)

    def _trouble(self, error: Exception, began_ns: int) -> Reply:
        return self.problem(error).reply(perf_counter_ns() - began_ns)

    def _item_trouble(self, error: Exception, at: int) -> dict[str, Any]:
        return {"error": _within_batch(self.problem(error), at).as_dict()}

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


def _require_size(checks: int) -> None:
    if not 0 < checks <= wire.MAX_BATCH:
        raise ProblemError(
            BAD_VALUE,
            f"a batch holds 1 to {wire.MAX_BATCH} checks, not {checks}",
            pointer="#/checks",
        )


def _within_batch(problem: ProblemError, at: int) -> ProblemError:
    """The same problem, pointing into the batch."""
    field = (problem.pointer or "#").removeprefix("#")
    problem.pointer = f"#/checks/{at}{field}"
    return problem


def _batch_reply(answers: list[Any], began_ns: int) -> Reply:
    lines = JSON + process_time_line(perf_counter_ns() - began_ns)
    return (OK, lines, wire.encode({"decisions": answers}))
