"""The store as a node sees it: an `AsyncEngine` whose every verb is a command sent over a link."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...charge import Charge, ChargeSet
from ...charge_kind import ChargeKind
from ...engines.base import EngineDescription, hooked
from ...errors import EngineError, EngineTimeout
from .sometimes import Sometimes
from .store import StoreCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from ...algorithms import Limit
    from ...clock import Clock
    from ...decision import Decision
    from ...engines.base import AsyncHit, HookedHit, Hooks, KeyPage, Usage
    from ..recorder import HistoryWriter
    from .link import SimulatedLink
    from .loop import SimulatedLoop

DESCRIPTION = EngineDescription(
    store="simulation",
    shared=True,
    promise="each limit as its algorithm guarantees",
    when_lost=("restart", "counts start anew, so each limit can be used once more"),
    round_trips=True,
    deny_cache=True,
    event_loops="one",
)


OF_CLIENTS: Final = "reservation"
"""The prefix of tokens of clients' reservations."""
BY_ITSELF: Final[ContextVar[bool]] = ContextVar("BY_ITSELF", default=False)
"""Whether a request comes from the node itself, not from a client."""


class SimulatedEngine:
    """Calls the store, and gives up at the deadline; see `AsyncEngine`."""

    nowait = None

    def __init__(
        self,
        loop: SimulatedLoop,
        link: SimulatedLink,
        clock: Clock,
        timeout_us: int,
        *,
        book: HistoryWriter,
        node: str,
    ) -> None:
        self.clock: Clock = clock
        self._book, self._node = book, node
        self._chunks: dict[str, tuple[str, Charge]] = {}
        """The node's chunks by token: the name in the history, and the charge."""
        self._loop, self._link, self._timeout_us = loop, link, timeout_us
        self._under_way: dict[int, Callable[[EngineError], None]] = {}
        """How to record requests that are not answered yet, by number."""
        self._asked = 0

    def killed(self) -> None:
        """Called when the node dies: its pending requests may or may not be carried out."""
        gone = EngineError("the node is gone", transient=True, indefinite=True)
        for note in list(self._under_way.values()):
            note(gone)
        self._under_way.clear()

    @contextmanager
    def _noted(self, note: Callable[[EngineError], None]) -> Iterator[None]:
        """Record an error of this call, including the death of the node during it."""
        self._asked += 1
        number = self._asked
        self._under_way[number] = note
        try:
            yield
        except EngineError as error:
            note(error)
            raise
        finally:
            self._under_way.pop(number, None)

    @property
    def unguarded(self) -> SimulatedEngine:
        """See `Engine.unguarded`."""
        return self

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return DESCRIPTION

    def scoped(self, namespace: str) -> SimulatedEngine:
        """The same engine: there is only one namespace."""
        return self

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""

        async def hit(key: str, cost: int) -> Decision:
            request = ChargeSet((Charge(key, limit, cost, rule=rule),))
            return (await self.decide([request]))[0]

        return hit

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """See `AsyncEngine.bind_hooked`."""
        return hooked(self.bind(limit, rule), hooks)

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""
        t0, by_itself = self._loop.now, BY_ITSELF.get()
        note = partial(self._note, requests, t0, by_itself)
        with self._noted(lambda error: note([error] * len(requests))):
            decisions: list[Decision] = await self._ask("decide", list(requests))
        note(decisions)
        return decisions

    async def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """See `Engine.settle`."""
        note = partial(self._note_return, token, actual, self._loop.now)
        with self._noted(note):
            settled: bool = await self._ask("settle", token, actual)
        if settled:
            note(None)
        return settled

    async def withdraw(self, request: ChargeSet) -> None:
        """See `Engine.withdraw`."""
        note = partial(self._note_return, request.token or "", 0, self._loop.now)
        with self._noted(note):
            await self._ask("withdraw", request)
        self._link.reached[Sometimes.WITHDRAWN] += 1
        note(None)

    # What a node does by itself is recorded here, because no client knows about it.

    def _note(
        self,
        requests: Sequence[ChargeSet],
        t0: int,
        by_itself: bool,  # noqa: FBT001 - bound by `partial`
        outcomes: Sequence[Decision | EngineError],
    ) -> None:
        for request, outcome in zip(requests, outcomes, strict=True):
            for charge in request.charges:
                fields: dict[str, Any] = {
                    "key": charge.key, "rule": charge.rule, "cost": charge.cost,
                    "node": self._node, "proc": self._node, "t0": t0, "t1": self._loop.now,
                }  # fmt: skip
                if request.reserve_us and not str(request.token).startswith(OF_CLIENTS):
                    chunk = f"{self._node}, chunk {len(self._chunks)}"
                    self._chunks[request.token or ""] = (chunk, charge)
                    fields.update(f="lease", lease_id=chunk)
                elif by_itself and charge.kind is ChargeKind.FORCE:
                    unknown = isinstance(outcome, EngineError) and outcome.indefinite
                    point = Sometimes.MERGED_TWICE if unknown else Sometimes.MERGED
                    self._link.reached[point] += 1
                    fields["f"] = "force"
                else:
                    continue
                if isinstance(outcome, EngineError):
                    self._book.failed(outcome, **fields)
                else:
                    self._book.decision(outcome, **fields)

    def _note_return(
        self, token: str, actual: int | Sequence[int], t0: int, error: EngineError | None
    ) -> None:
        """Record that the rest of a chunk is returned."""
        if token not in self._chunks or not isinstance(actual, int):
            return
        chunk, charge = self._chunks[token]
        fields = {
            "f": "unlease", "lease_id": chunk, "key": charge.key, "rule": charge.rule, "node": self._node,
            "proc": self._node, "cost": max(0, charge.cost - actual), "t0": t0, "t1": self._loop.now,
        }  # fmt: skip
        if error is not None:
            self._book.failed(error, **fields)
        else:
            self._link.reached[Sometimes.CHUNK_RETURNED] += 1
            self._book.operation(**fields, type="allow")

    def leave_line(self, decision: Decision) -> Coroutine[Any, Any, None]:
        """See `Engine.leave_line`."""
        return self._ask("leave_line", decision)

    def renew(
        self, key: str, limit: Limit, token: str, rule: str | None = None
    ) -> Coroutine[Any, Any, bool]:
        """See `Engine.renew`."""
        return self._ask("renew", key, limit, token, rule)

    def release(
        self, key: str, limit: Limit, token: str, rule: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """See `Engine.release`."""
        return self._ask("release", key, limit, token, rule)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Coroutine[Any, Any, Usage]:
        """See `Engine.usage`."""
        return self._ask("usage", key, limit, rule)

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> Coroutine[Any, Any, None]:
        """See `Engine.reset`."""
        return self._ask("reset", key, limit, rule)

    def list_keys(
        self, prefix: str = "", cursor: str = "", limit: int = 100
    ) -> Coroutine[Any, Any, KeyPage]:
        """See `Engine.list_keys`."""
        return self._ask("list_keys", prefix, cursor, limit)

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _ask(self, verb: str, *args: Any) -> Any:
        reply = self._loop.create_future()
        self._link.send(StoreCommand(verb, args), reply)
        try:
            async with asyncio.timeout(self._timeout_us / 1e6):
                return await reply
        except TimeoutError:
            raise EngineTimeout(
                "the store did not answer in time", transient=True, indefinite=True
            ) from None
