"""The clients: what they request, and what they record. They belong to no node, and use the history's clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ...charge import Charge, ChargeSet
from ...charge_kind import ChargeKind
from ...decision import Decision
from ...errors import EngineTimeout, HeadgateError, may_have_happened
from ..limits import most_at_once
from ..recorder import HistoryWriter, line_of
from .sometimes import Sometimes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Mapping
    from random import Random

    from ...algorithms import Concurrency, Limit
    from ...engines.base import AsyncEngine
    from .loop import SimulatedLoop
    from .node import SimulatedNode
    from .store import SimulatedStore

PATIENCE_US: Final = 3_000_000
"""How long a client waits for its node."""
RESERVED_US: Final = 400_000
SLOTS: Final = "slots"
TOGETHER: Final = "all"
API: Final = "api"


class HistoryLines(HistoryWriter):
    """A history in memory, as a list of lines."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.lines: list[bytes] = []
        self._write(header)

    def _write(self, record: dict[str, Any]) -> None:
        self.lines.append(line_of(record))


@dataclass(eq=False)
class SimulatedClients:
    """All clients of a simulation; they share only the history."""

    loop: SimulatedLoop
    book: HistoryLines
    store: SimulatedStore
    nodes: list[SimulatedNode]
    limits: Mapping[str, Limit]
    verbs: Mapping[str, int]
    """What they do, with weights."""
    keys: int
    pace_us: int
    rng: Random
    reached: Counter[Sometimes]
    ends: int
    """When they stop sending requests."""
    unanswered_from: int
    """From when on every request must be answered."""
    problems: list[str] = field(default_factory=list)
    _names: count[int] = field(default_factory=count)
    _reset_at: dict[str, int] = field(default_factory=dict)

    def start(self, many: int) -> None:
        """Start this many clients."""
        for number in range(many):
            self.loop.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        rng, proc, lives = self.rng, f"client {number}", 0
        verbs, weights = list(self.verbs), list(self.verbs.values())
        while True:
            # Bursts and lulls: half of the time the next request follows at once.
            pause_us = rng.choice((0, 0, 1, rng.randrange(2 * self.pace_us), 3 * self.pace_us))
            await asyncio.sleep(pause_us / 1e6)
            if self.loop.now >= self.ends:
                return
            (verb,) = rng.choices(verbs, weights)
            sure = await getattr(self, f"_{verb}")(rng.choice(self.nodes), proc)
            if not sure:  # The outcome is unknown, so another client takes its place.
                lives += 1
                proc = f"client {number}.{lives}"

    # Their actions. Each returns whether its outcome is known.

    async def _check(self, node: SimulatedNode, proc: str) -> bool:
        key, cost, limit = self._key(), self._cost(), self.limits[API]
        return await self._decided(
            lambda engine: _hit(engine, key, limit, cost, API),
            [(key, API, cost)], f="check", node=node, proc=proc,
        )  # fmt: skip

    async def _together(self, node: SimulatedNode, proc: str) -> bool:
        parts = [(self._key(), API, self._cost()), ("everyone", TOGETHER, self._cost())]
        charges = tuple([Charge(key, self.limits[rule], n, rule=rule) for key, rule, n in parts])
        return await self._decided(
            _decide(ChargeSet(charges)), parts, f="check", node=node, proc=proc
        )

    async def _peek(self, node: SimulatedNode, proc: str) -> bool:
        return await self._of_kind(ChargeKind.PEEK, "peek", node, proc)

    async def _force(self, node: SimulatedNode, proc: str) -> bool:
        return await self._of_kind(ChargeKind.FORCE, "force", node, proc)

    async def _of_kind(self, kind: ChargeKind, f: str, node: SimulatedNode, proc: str) -> bool:
        key, cost = self._key(), self._cost()
        charge = Charge(key, self.limits[API], cost, kind=kind, rule=API)
        return await self._decided(
            _decide(ChargeSet((charge,))), [(key, API, cost)], f=f, node=node, proc=proc
        )

    async def _reset(self, node: SimulatedNode, proc: str) -> bool:
        key = self._key()
        self._reset_at[key] = self.loop.now
        return await self._done(
            lambda engine: engine.reset(key, self.limits[API], API),
            f="reset", key=key, rule=API, node=node, proc=proc,
        )  # fmt: skip

    async def _reserve(self, node: SimulatedNode, proc: str) -> bool:
        key, cost, token = self._key(), self._cost() + 1, f"reservation {next(self._names)}"
        charge = Charge(key, self.limits[API], cost, rule=API)
        request = ChargeSet((charge,), reserve_us=RESERVED_US, token=token)
        begun = self.loop.now
        results: list[Decision] = []
        sure = await self._decided(
            _decide(request),
            [(key, API, cost)],
            results,
            f="reserve",
            token=token,
            node=node,
            proc=proc,
        )
        if results and results[0]:
            self.loop.create_task(self._settle(key, cost, token, proc, begun))
        return sure

    async def _settle(self, key: str, cost: int, token: str, proc: str, begun: int) -> None:
        """Settle a reservation some time later, and again if the outcome is unknown."""
        await asyncio.sleep(self.rng.randrange(int(1.4 * RESERVED_US)) / 1e6)
        actual = self.rng.randint(0, cost + 2)
        for attempt in range(3):
            late = self.loop.now - begun > RESERVED_US
            node = self.rng.choice(self.nodes)
            results: list[Any] = []
            sure = await self._done(
                lambda engine: engine.settle(token, actual), results,
                f="settle", key=key, rule=API, cost=actual, token=token, node=node, proc=proc,
            )  # fmt: skip
            if results and results[0] is False:
                self.reached[Sometimes.SETTLED_LATE if late else Sometimes.SETTLED_TWICE] += 1
            elif results and actual < cost:
                self.reached[Sometimes.SETTLED_LESS] += 1
            again = not attempt and self.rng.random() < 0.1  # It may not have reached the store.
            if sure and not again:
                return

    async def _hold(self, node: SimulatedNode, proc: str) -> bool:
        key, cost, token = self._key(), self._cost(), f"slot {next(self._names)}"
        request = ChargeSet((Charge(key, self.limits[SLOTS], cost, rule=SLOTS),), token=token)
        results: list[Decision] = []
        sure = await self._decided(
            _decide(request),
            [(key, SLOTS, cost)],
            results,
            f="acquire",
            token=token,
            node=node,
            proc=proc,
        )
        if results and results[0]:
            self.loop.create_task(self._use(key, token, proc))
        return sure

    async def _use(self, key: str, token: str, proc: str) -> None:
        """Hold a slot, perhaps renew it, and perhaps release it."""
        limit: Concurrency = self.limits[SLOTS]  # type: ignore[assignment]
        since = self.loop.now
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            await asyncio.sleep(self.rng.randrange(limit.ttl_us) / 1e6)
            results: list[Any] = []
            await self._done(
                lambda engine: engine.renew(key, limit, token, SLOTS), results,
                f="renew", key=key, rule=SLOTS, token=token, node=self.rng.choice(self.nodes), proc=proc,
            )  # fmt: skip
            if results and results[0] is False:
                self.reached[Sometimes.LOST_SLOT] += 1
                return
            since = self.loop.now
        await asyncio.sleep(self.rng.randrange(int(1.2 * limit.ttl_us)) / 1e6)
        if self.rng.random() < 0.8:
            if self.loop.now - since > limit.ttl_us:
                self.reached[Sometimes.RELEASED_LATE] += 1
            await self._done(
                lambda engine: engine.release(key, limit, token, SLOTS),
                f="release", key=key, rule=SLOTS, token=token, node=self.rng.choice(self.nodes), proc=proc,
            )  # fmt: skip

    # Recording

    async def _decided(
        self,
        act: Callable[[AsyncEngine], Awaitable[Decision]],
        parts: list[tuple[str, str, int]],
        results: list[Decision] | None = None,
        *,
        node: SimulatedNode,
        **fields: Any,
    ) -> bool:
        fields["node"] = node.name
        if len(parts) > 1:
            fields["id"] = next(self._names)
        t0, result = await self._ask(node, act)
        times = {"t0": t0, "t1": self.loop.now}
        if isinstance(result, HeadgateError):
            for key, rule, cost in parts:
                self.book.failed(result, **fields, **times, key=key, rule=rule, cost=cost)
            return not may_have_happened(result)
        if results is not None:
            results.append(result)
        key, rule, _ = parts[0]
        costs: dict[str | None, int] = {rule: cost for _, rule, cost in parts}
        self.book.decision(result, costs=costs, **{"key": key, "rule": rule, **fields}, **times)
        self._note(result, t0)
        return True

    async def _done(
        self,
        act: Callable[[AsyncEngine], Awaitable[Any]],
        results: list[Any] | None = None,
        *,
        node: SimulatedNode,
        **fields: Any,
    ) -> bool:
        t0, result = await self._ask(node, act)
        fields.update(node=node.name, t0=t0, t1=self.loop.now)
        if isinstance(result, HeadgateError):
            self.book.failed(result, **fields)
            return not may_have_happened(result)
        if results is not None:
            results.append(result)
        self.book.operation(**fields, type="deny" if result is False else "allow")
        return True

    async def _ask(
        self, node: SimulatedNode, act: Callable[[AsyncEngine], Awaitable[Any]]
    ) -> tuple[int, Any]:
        """The time of sending, and the result or the error."""
        t0 = self.loop.now
        reply = self.loop.create_future()
        node.receive(act, reply)
        result: Any
        try:
            async with asyncio.timeout(PATIENCE_US / 1e6):
                result = await reply
        except TimeoutError:
            result = EngineTimeout("the node did not answer", transient=True, indefinite=True)
        except HeadgateError as error:
            result = error
        if isinstance(result, HeadgateError) and t0 >= self.unanswered_from:
            self.problems.append(f"at {t0} us, long after everything was healed: {result}")
        return t0, result

    def _note(self, decision: Decision, t0: int) -> None:
        reached = self.reached
        if decision.source == "lease":
            reached[Sometimes.LEASED] += 1
        if decision.source == "fallback":
            reached[Sometimes.SHARED if decision else Sometimes.SHARE_SPENT] += 1
            if any(most_at_once(one.limited_by) < len(self.nodes) for one in decision.rules):
                reached[Sometimes.SMALL_SHARE] += 1
        if not decision:
            reached[Sometimes.AT_LIMIT] += 1
            if decision.source == "engine" and self._reset_at.get(decision.key, 0) > t0:
                reached[Sometimes.RESET_DENIED] += 1
            if decision.source == "cache":
                reached[Sometimes.CACHED] += 1
                if not self.store.up or self.store.stopped:
                    reached[Sometimes.CACHED_AWAY] += 1
            if len(decision.rules) > 1 and decision.rules[0]:
                reached[Sometimes.SECOND_DENIED] += 1

    def _key(self) -> str:
        return f"key {self.rng.randrange(self.keys)}"

    def _cost(self) -> int:
        return self.rng.choice((1, 1, 1, 2, 3))


async def _hit(engine: AsyncEngine, key: str, limit: Limit, cost: int, rule: str) -> Decision:
    answer = engine.bind(limit, rule)(key, cost)
    return answer if isinstance(answer, Decision) else await answer


def _decide(request: ChargeSet) -> Callable[[AsyncEngine], Awaitable[Decision]]:
    async def act(engine: AsyncEngine) -> Decision:
        return (await engine.decide([request]))[0]

    return act
