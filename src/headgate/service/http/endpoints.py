"""The endpoints of the check API, as functions from a body to a reply: the front's answers in JSON.

The fast path and the ASGI routes both call them.

A fast endpoint returns its reply, or a `Later` if the front's answer has to wait. No endpoint raises for invalid input
or a store that does not answer: those are replies, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from ...decision import Decision
from ...engines.base import Run
from ...errors import EngineError, HeadgateError, UsageError
from ...headers import decision_lines, process_time_line
from ...held import RESERVATION_TTL
from ..front import Front, Pending
from . import bodies
from .batches import read_batch, within_batch
from .described_request import incoming_from
from .json_reading import T, read
from .problems import (
    FAILED,
    JSON,
    ProblemError,
    Reply,
    overloaded,
    store_unavailable,
    usage_problem,
)

if TYPE_CHECKING:
    import asyncio

    from ..front import BatchResult
    from ..node import Node


class Later(NamedTuple):
    """A reply that is not there yet: when the future is done, `finish` returns it."""

    future: asyncio.Future[Any]
    finish: Callable[[], Reply]


Endpoint: TypeAlias = Callable[[bytes, bool], Reply | Later]
"""`(body, whether a denial is sent as status 429)`."""
AwaitedEndpoint: TypeAlias = Callable[[bytes, bool], Awaitable[Reply]]

OK: Final = 200
DENIED: Final = 429
_CHECK: Final = msgspec.json.Decoder(bodies.CheckBody)
_DECIDE: Final = msgspec.json.Decoder(bodies.DecideBody)
_RESERVE: Final = msgspec.json.Decoder(bodies.ReserveBody)
_SETTLE: Final = msgspec.json.Decoder(bodies.SettleBody)
_ACQUIRE: Final = msgspec.json.Decoder(bodies.AcquireBody)
_RELEASE: Final = msgspec.json.Decoder(bodies.ReleaseBody)


class Endpoints:
    """The check API of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._board = node.board
        self._log = logging.getLogger("headgate.service")
        self._incoming = incoming_from(node.settings.trusted_proxies)
        self._front = Front(node)
        self._shedding = node.shedding
        self._shed_reply = overloaded().reply()

    # Fast endpoints

    def check(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001 - hot
        """`POST /check`."""
        if self._shedding.share and self._shedding.refuses():
            return self._shed_reply
        began_ns = perf_counter_ns()
        try:
            check, unknown = read(_CHECK, body)
            if unknown:
                self._node.recorder.record_ignored_fields(unknown)
            decision = self._front.check(check, began_ns)
        except (ProblemError, HeadgateError) as error:
            return self._problem_reply(error, began_ns)
        if isinstance(decision, Decision):
            return self._reply(decision, as_status, began_ns)
        return self._later(decision, as_status, began_ns)

    def batch(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /check/batch`: each check separately, answers in order; an error in one is returned at its position."""
        if self._shedding.share and self._shedding.refuses():
            return self._shed_reply
        began_ns = perf_counter_ns()
        try:
            items = read_batch(body, self._node.recorder.record_ignored_fields)
        except ProblemError as error:
            return error.reply(perf_counter_ns() - began_ns)
        results = self._front.check_batch(items, began_ns)
        if isinstance(results, Pending):
            pending = results
            return Later(pending.future, lambda: self._batch_reply(pending.result(), began_ns))
        return self._batch_reply(results, began_ns)

    def decide(self, body: bytes, as_status: bool) -> Reply | Later:  # noqa: FBT001
        """`POST /decide`: applies the rules to a described request."""
        if self._shedding.share and self._shedding.refuses():
            return self._shed_reply
        began_ns = perf_counter_ns()
        try:
            asked = self._read(_DECIDE, body)
            bodies.require_few(asked.descriptors)
            decision = self._front.decide(self._incoming(asked), began_ns)
        except (ProblemError, HeadgateError) as error:
            return self._problem_reply(error, began_ns)
        if isinstance(decision, Decision):
            return self._reply(decision, as_status, began_ns)
        return self._later(decision, as_status, began_ns)

    # Async endpoints

    async def reserve(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /reserve`."""
        began_ns = perf_counter_ns()
        try:
            asked = self._read(_RESERVE, body)
            ttl = RESERVATION_TTL if asked.ttl is UNSET else asked.ttl
            decision = await self._front.reserve(asked, began_ns, ttl=ttl)
        except Exception as error:  # noqa: BLE001 - every error has a reply
            return self._problem_reply(error, began_ns)
        return self._reply(decision, as_status, began_ns)

    async def settle(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /settle`."""
        began_ns = perf_counter_ns()
        try:
            asked = self._read(_SETTLE, body)
            settled = await self._front.settle(asked.token, asked.actual)
        except Exception as error:  # noqa: BLE001 - as above
            return self._problem_reply(error, began_ns)
        return (OK, JSON, bodies.encode({"settled": settled}))

    async def acquire(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /acquire`."""
        began_ns = perf_counter_ns()
        try:
            asked = self._read(_ACQUIRE, body)
            token = None if asked.token is UNSET else asked.token
            decision = await self._front.acquire(
                asked.key, asked.limit, began_ns, cost=asked.cost, ttl=asked.ttl, token=token
            )
        except Exception as error:  # noqa: BLE001 - as above
            return self._problem_reply(error, began_ns)
        return self._reply(decision, as_status, began_ns)

    async def release(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /release`."""
        began_ns = perf_counter_ns()
        try:
            asked = self._read(_RELEASE, body)
            await self._front.release(asked.key, asked.token)
        except Exception as error:  # noqa: BLE001 - as above
            return self._problem_reply(error, began_ns)
        return (OK, JSON, bodies.encode({"released": True}))

    # Replies

    def _read(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        value, unknown = read(decoder, body)
        if unknown:
            self._node.recorder.record_ignored_fields(unknown)
        return value

    def _reply(self, decision: Decision, as_status: bool, began_ns: int) -> Reply:  # noqa: FBT001
        took_ns = perf_counter_ns() - began_ns
        return (
            DENIED if as_status and not decision.answer[0] else OK,
            decision_lines(decision, took_ns, self._board.offset_us),
            bodies.encode(bodies.answer_of(decision)),
        )

    def _later(self, pending: Pending[Decision], as_status: bool, began_ns: int) -> Later:  # noqa: FBT001
        def finish() -> Reply:
            try:
                return self._reply(pending.result(), as_status, began_ns)
            except Exception as error:  # noqa: BLE001 - the caller gets a reply for any error
                return self._problem_reply(error, began_ns)

        return Later(pending.future, finish)

    def _batch_reply(self, results: BatchResult, began_ns: int) -> Reply:
        answers: list[Any] = []
        for result in results:
            if isinstance(result, Run):
                answers += bodies.answers_of(result)
            elif isinstance(result, Decision):
                answers.append(bodies.answer_of(result))
            else:
                problem = within_batch(self._problem(result), len(answers))
                answers.append({"error": problem.as_dict()})
        lines = JSON + process_time_line(perf_counter_ns() - began_ns)
        return (OK, lines, bodies.encode({"decisions": answers}))

    def _problem_reply(self, error: Exception, began_ns: int) -> Reply:
        return self._problem(error).reply(perf_counter_ns() - began_ns)

    def _problem(self, error: Exception) -> ProblemError:
        """An error as the caller's problem."""
        if isinstance(error, ProblemError):
            return error
        if isinstance(error, UsageError):
            return usage_problem(error)
        if isinstance(error, EngineError):
            return store_unavailable("the store does not answer; there is no decision")
        self._log.error("a check failed: %s", error, exc_info=error)
        return ProblemError(FAILED, "the check failed; see the service's log")
