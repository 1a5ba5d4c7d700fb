"""The node's side of packed calls: from bytes to calls of an engine, and from decisions to replies. No sockets here.

    HG <verb> <number of names> <name…> <argument…>

Verbs, names and arguments are those of the Lua functions (`redis/lua/`), so that one client works with Redis and with
nodes; only nodes have `withdraw` and `list`. Replies have the functions' format, too, followed by `notes` if numbers
are not enough. Every request of a call has its own answer, even if the engine failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ...algorithms import limit_of_identity
from ...charge import ChargeSet
from ...decision import Decision
from ...errors import EngineError, HeadgateError, UsageError
from ..base import Run, Usage
from ..redis.codec import NOT_CHARGED, TAKEN, UNKNOWN
from . import calls
from .calls import HEAD, MAX_NAMES, Hits, UsageQuestion
from .notes import notes_of
from .scopes import Scopes

if TYPE_CHECKING:
    from typing import Self

    from ...algorithms import Limit
    from ..base import AsyncEngine, KeyPage
    from .calls import Requests
    from .notes import Value

Outcome: TypeAlias = "Decision | Usage | Exception"
Outcomes: TypeAlias = "Sequence[Run | Outcome]"
Handler: TypeAlias = "Callable[[list[bytes]], Value | Awaitable[Value]]"
"""Answers a command, given the words behind its name: a value, or something to await for one."""


class WireError(Exception):
    """An error reply in the node's own words: the first of them says what to do about it."""


class ServedEngine(Protocol):
    """What packed calls are put to. What it raises for one request is told in the place of that request's answer."""

    def scoped(self, namespace: str) -> ServedEngine:
        """The same for another namespace."""

    def now_us(self) -> int:
        """The engine's clock."""

    def take(
        self, limit: Limit, rule: str | None, keys: list[str]
    ) -> Outcomes | Awaitable[Outcomes]:
        """One unit for each key, each for itself."""

    def decide(self, requests: list[ChargeSet | UsageQuestion]) -> Outcomes | Awaitable[Outcomes]:
        """Each request, all or nothing."""

    @property
    def engine(self) -> AsyncEngine:
        """For everything that is no decision."""

    @property
    def bound(self) -> int:
        """How many limits it remembers how to hit."""

    @property
    def ever_bound(self) -> int:
        """How many it has ever found out, together with its scopes."""

    @property
    def forgettable(self) -> bool:
        """Whether it can be made anew without any loss."""


class Served:
    """Any engine, asked as it is."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    def scoped(self, namespace: str) -> Self:
        """See `ServedEngine.scoped`."""
        return type(self)(self.engine.scoped(namespace))

    def now_us(self) -> int:
        """See `ServedEngine.now_us`."""
        return self.engine.clock.now_us()

    def take(
        self, limit: Limit, rule: str | None, keys: list[str]
    ) -> Outcomes | Awaitable[Outcomes]:
        """See `ServedEngine.take`."""
        return when_done([tried(self.engine.bind(limit, rule), key, 1) for key in keys])

    def decide(self, requests: list[ChargeSet | UsageQuestion]) -> Outcomes | Awaitable[Outcomes]:
        """See `ServedEngine.decide`."""
        return when_done([asked(self.engine, request) for request in requests])

    @property
    def bound(self) -> int:
        """See `ServedEngine.bound`: it is for the engine to remember, and to bound that."""
        return 0

    @property
    def ever_bound(self) -> int:
        """See `ServedEngine.ever_bound`."""
        return 0

    @property
    def forgettable(self) -> bool:
        """See `ServedEngine.forgettable`."""
        return True


def tried(call: Callable[..., Any], *arguments: Any) -> Any:
    """What came of a call: a result, a future of one, or what was wrong."""
    try:
        outcome = call(*arguments)
    except HeadgateError as error:
        return error
    if isinstance(outcome, Decision | Usage | list | asyncio.Future):
        return outcome
    return asyncio.ensure_future(outcome)


def asked(engine: AsyncEngine, request: ChargeSet | UsageQuestion) -> Any:
    """The same for a request, or for what a key has used."""
    now: Any = engine.nowait or engine
    if isinstance(request, UsageQuestion):
        return tried(now.usage, *request)
    outcome = tried(now.decide, [request])
    return outcome[0] if isinstance(outcome, list) else outcome


def when_done(outcomes: list[Any]) -> Outcomes | Awaitable[Outcomes]:
    """The outcomes, at once if nobody has to be waited for."""
    waiting = [one for one in outcomes if isinstance(one, asyncio.Future)]
    return _all_done(outcomes, waiting) if waiting else outcomes


async def _all_done(outcomes: list[Any], waiting: list[asyncio.Future[Any]]) -> Outcomes:
    await asyncio.wait(waiting)
    return [result_of(one) if isinstance(one, asyncio.Future) else one for one in outcomes]


def result_of(future: asyncio.Future[Any]) -> Any:
    """What a future that is done has brought: a decision, the usage of a key, or what was wrong."""
    error = future.exception()
    if error is not None:
        if isinstance(error, Exception):
            return error
        raise error
    result = future.result()
    return result[0] if isinstance(result, list) else result


class PackedCalls:
    """Answers packed calls from an engine."""

    def __init__(self, served: ServedEngine) -> None:
        self.scopes = Scopes(served)
        """What answers for the namespaces that callers name."""
        self._scope = self.scopes.of
        self._verbs: dict[bytes, Callable[[list[bytes], list[bytes]], Any]] = {
            b"take": self._take,
            b"decide": self._decide,
            b"withdraw": self._withdraw,
            b"settle": self._settle,
            b"leave_line": self._leave_line,
            b"slots": self._slots,
            b"reset": self._reset,
            b"list": self._list,
        }

    def call(self, words: list[bytes]) -> Value | Awaitable[Value]:
        """Answer a call: verb, number of names, names, arguments."""
        if len(words) < 2:
            raise UsageError("a call is a verb, the number of its names, the names, and arguments")
        verb = self._verbs.get(words[0])
        if verb is None:
            known = ", ".join(sorted(one.decode() for one in self._verbs))
            raise UsageError(
                f"there is no verb {words[0].decode('latin-1')[:60]!r}; the verbs are {known}"
            )
        count = words[1]
        if not (
            count.isdigit() and len(count) < 6 and int(count) <= min(MAX_NAMES, len(words) - 2)
        ):
            raise UsageError(f"a call has 0 to {MAX_NAMES} names after their count")
        split = 2 + int(count)
        names = words[2:split]
        while names and names[-1].startswith(ENDS_OF_SLOTS):
            names.pop()
        return verb(names, words[split:])

    # Decisions.

    def _take(self, names: list[bytes], arguments: list[bytes]) -> Any:
        _require(names and len(arguments) == 1)
        hits = calls.read_hits(names, arguments[0])
        served = self._scope(hits.namespace)
        outcomes = served.take(hits.limit, hits.rule, hits.keys)
        return _when_replied(outcomes, lambda found: _take_reply(found, hits, served.now_us()))

    def _decide(self, names: list[bytes], arguments: list[bytes]) -> Any:
        _require(names and arguments)
        requests = calls.read_requests(names, arguments[0], arguments[1:])
        # All scopes are there before anything is decided.
        parts = [(self._scope(one), places) for one, places in requests.by_namespace().items()]
        served = parts[0][0]
        if len(parts) == 1:
            outcomes = served.decide(requests.asked)
        else:
            outcomes = _decide_by_namespace(parts, requests.asked)
        return _when_replied(
            outcomes, lambda found: _decide_reply(found, requests, served.now_us())
        )

    # Everything else.

    async def _withdraw(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(names and arguments)
        requests = calls.read_requests(names, arguments[0], arguments[1:])
        for request in requests.asked:
            _require(isinstance(request, ChargeSet))
        for request, namespace in zip(requests.asked, requests.namespaces, strict=True):
            if isinstance(request, ChargeSet):
                await self._scope(namespace).engine.withdraw(request)
        return [1]

    async def _settle(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(len(names) == len(arguments) == 1)
        namespace, token = calls.read_record(names[0])
        refuse_us, *used = calls.read_numbers(arguments[0], calls.read_head(arguments[0])) or [1]
        _require(refuse_us == 0 and used)
        actual: Any = used if len(used) > 1 else used[0]
        try:
            return [int(await self._scope(namespace).engine.settle(token, actual))]
        except UsageError:  # The numbers are good, so it is how many there are.
            return [-1]

    async def _leave_line(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(len(names) == len(arguments) == 1 and len(arguments[0]) > HEAD.size + 8)
        at = calls.read_head(arguments[0])
        (mark,) = calls.read_numbers(arguments[0][: at + 8], at)
        namespace, (key, limit, rule) = calls.read_state(names[0], arguments[0][at + 8 :])
        context = Decision(key, limit, (True, 0, 0, 0, 0)).context._replace(rule=rule, mark=mark)
        await self._scope(namespace).engine.leave_line(
            Decision(key, limit, (True, 0, 0, 0, 0), context)
        )
        return [1]

    async def _slots(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(len(names) == 1 and len(arguments) == 2 and len(arguments[0]) > HEAD.size + 1)
        at = calls.read_head(arguments[0])
        namespace, state = calls.read_state(names[0], arguments[0][at + 1 :])
        key, limit, rule = state
        _require(limit.name == "concurrency")
        engine, token = self._scope(namespace).engine, calls.read_token(arguments[1])
        if arguments[0][at]:
            return [int(await engine.renew(key, limit, token, rule))]
        await engine.release(key, limit, token, rule)
        return [1]

    async def _reset(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(len(names) == 1 and arguments in ([], [b""]))
        namespace, rule, identity, key = calls.read_identity(names[0])
        try:
            limit = limit_of_identity(identity)
        except (LookupError, ValueError, HeadgateError):
            raise UsageError(f"nothing is counted as {identity!r:.80}") from None
        await self._scope(namespace).engine.reset(key, limit, rule)
        return [1]

    async def _list(self, names: list[bytes], arguments: list[bytes]) -> Value:
        _require(not names and len(arguments) == 4 and arguments[3].isdigit())
        _require(len(arguments[3]) < 6 and 0 < int(arguments[3]) <= MAX_NAMES)
        namespace, prefix, cursor = map(calls.text_of, arguments[:3])
        page: KeyPage = await self._scope(namespace).engine.list_keys(
            prefix, cursor, int(arguments[3])
        )
        rows = [
            [
                one.key.encode(),
                None if one.rule is None else one.rule.encode(),
                one.algorithm.encode(),
                *(one.window_us, one.count, one.idle_at_us, one.limit, int(one.limit_known)),
            ]
            for one in page.entries
        ]
        return [page.cursor.encode(), *rows]


ENDS_OF_SLOTS: Final = b"hg:e"
"""Redis is also told what lies beside the states of slots, and nodes have nothing there."""


def _require(condition: object) -> None:
    if not condition:
        raise UsageError("the names or the arguments of the call are not those of its verb")


def _when_replied(outcomes: Any, reply: Callable[[Outcomes], Value]) -> Any:
    if not isinstance(outcomes, Awaitable):
        return reply(outcomes)

    async def later() -> Value:
        return reply(await outcomes)

    return later()


async def _decide_by_namespace(
    parts: list[tuple[ServedEngine, list[int]]], asked_for: list[ChargeSet | UsageQuestion]
) -> Outcomes:
    """The outcomes of requests of several namespaces, in order: clients send together what they are asked together."""
    decided = [served.decide([asked_for[place] for place in places]) for served, places in parts]
    found: list[Any] = [None] * len(asked_for)
    for (_, places), outcomes in zip(parts, decided, strict=True):
        ready = await outcomes if isinstance(outcomes, Awaitable) else outcomes
        for place, outcome in zip(places, ready, strict=True):
            found[place] = outcome
    return found


class _Reply:
    """The reply to a call that decides."""

    def __init__(self, now_us: int) -> None:
        self._numbers: list[Any] = [now_us]
        self._notes: list[Value] = []
        self._step = 0

    def add_run(self, run: Run) -> None:
        """The answers of plain hits."""
        for answer in run.answers:
            self._numbers += answer
        self._step += len(run.answers)

    def add(self, outcome: Any, limits: tuple[Limit, ...], token: str | None = None) -> None:
        """The answer of one request; `token` is what the caller would take its token to be."""
        numbers = self._numbers
        if isinstance(outcome, Decision):
            decisions = outcome.several or (outcome,)
            if len(decisions) != len(limits):  # A guard answered, or a key has its own limit.
                decisions = (outcome,) * len(limits)
            for decision in decisions:
                numbers += decision.answer
            context = outcome.context
            token = token if outcome.answer[0] else context.token
            self._notes += notes_of(self._step, decisions, limits, context, token)
        elif isinstance(outcome, Usage):
            numbers += (outcome.used, *outcome.answer[1:])
        else:
            numbers += (_code_of(outcome), 0, 0, 0, 0) * len(limits)
        self._step += len(limits)

    @property
    def value(self) -> Value:
        """All of it."""
        return [*self._numbers, self._notes] if self._notes else self._numbers


def _take_reply(outcomes: Outcomes, hits: Hits, now_us: int) -> Value:
    reply, limits = _Reply(now_us), (hits.limit,)
    for outcome in outcomes:
        if isinstance(outcome, Run):
            reply.add_run(outcome)
        else:
            reply.add(outcome, limits)
    return reply.value


def _decide_reply(outcomes: Outcomes, requests: Requests, now_us: int) -> Value:
    reply = _Reply(now_us)
    for outcome, request, limits in zip(outcomes, requests.asked, requests.limits, strict=True):
        reply.add(outcome, limits, request.token if isinstance(request, ChargeSet) else None)
    return reply.value


def _code_of(error: Exception) -> int:
    if isinstance(error, EngineError):
        return UNKNOWN if error.indefinite else NOT_CHARGED
    if isinstance(error, UsageError):  # The call was read: all that can be wrong is a name in use.
        return TAKEN
    logging.getLogger("headgate").error("a request of a node failed: %s", error, exc_info=error)
    return UNKNOWN
