"""The memory engine: states in dicts, one lock, no I/O.

Exact for one process, and safe under threads. Memory is bounded by `max_keys` without ever forgetting a key
that is at its limit (see `_table.py`). With a `state_file` a restart keeps its counts (see `state_file.py`).

`bind` is the hot path, and is written for speed: one closure per limit with everything it needs at hand. All
other operations go through `_decide`, which reads like the contract.
"""

from __future__ import annotations

import copy
import secrets
import threading
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, NamedTuple

from ..algorithms import Concurrency, Limit, TokenBucket, limit_of_identity
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import Charge, Kind, Request, require_cost, require_key
from ..clock import Clock, SystemClock
from ..decision import ENGINE, Context, Decision, Source
from ..errors import UsageError
from ._reservations import Held, Reservations
from ._table import Table, shared_index
from .base import Entry, Hit, Page, Usage, combined
from .state_file import StateFile, TableName

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ..algorithms import Answer, State

ONE = 1
SWEEP_PER_KEY = 4
SWEEP_WHEN_FULL = 16
SHARED = Context(degraded=True)


class Counters(NamedTuple):
    """What the engine has done to stay within its bound."""

    keys: int
    """Keys that have a state now."""
    dropped: int
    """Idle keys that were dropped, without loss."""
    shared: int
    """Decisions that were made on a state shared between strangers, because memory was full."""
    reservations: int
    """Reservations that may still be settled."""


class Step(NamedTuple):
    """One limit of one charge, evaluated but not yet written."""

    charge: Charge
    limit: Limit
    table: Table
    before: State
    after: State
    answer: Answer
    first: bool
    """Whether no earlier charge of the request touched the same state."""


class MemoryEngine:
    """Keeps states in this process.

    >>> from headgate import Limiter, MemoryEngine
    >>> limiter = Limiter(MemoryEngine(max_keys=100_000))
    """

    def __init__(
        self,
        *,
        max_keys: int = 1_000_000,
        clock: Clock | None = None,
        state_file: str | os.PathLike[str] | None = None,
        save_every: float = 10.0,
    ) -> None:
        require_whole("max_keys", max_keys, 1, MAX_EXACT)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.max_keys = max_keys
        self._namespace = ""
        self._core = _Core()
        if state_file is not None:
            file = StateFile(state_file, save_every)
            self._core.open_file(file)
            file.start_saving(self.save)

    def scoped(self, namespace: str) -> MemoryEngine:
        """The same states and bounds, under another namespace."""
        twin = copy.copy(self)
        twin._namespace = namespace
        return twin

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key: the fast path."""
        core = self._core
        table = self._table(limit, rule)
        acquire, release = core.lock.acquire, core.lock.release
        clock, ticks, take = self.clock, self.clock.ticks, limit.take
        context = ENGINE if rule is None else Context(rule=rule)
        new_key = self._take_new

        def hit(key: str, cost: int) -> Decision:
            if cost is not ONE:  # The usual cost needs no check; `True` is another object.
                require_cost(cost)
            now_us = (ticks() + clock.epoch_ns) // 1000
            acquire()
            try:
                states = table.young
                state = states.get(key)
                if state is None:
                    answer, degraded = new_key(table, key, limit, now_us, cost)
                    return Decision((key, limit, answer, SHARED if degraded else context))
                after, answer = take(state, now_us, cost)
                if after is not state:
                    states[key] = after
            except TypeError:  # A key that cannot be looked up is no text either.
                require_key(key)
                raise
            finally:
                release()
            return Decision((key, limit, answer, context))

        return hit

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""
        return [self._decide(request) for request in requests]

    def settle(self, token: str, actual: int) -> bool:
        """Refund or charge the difference between a reservation and what was used."""
        require_cost(actual)
        core = self._core
        with core.lock:
            now_us = self.clock.now_us()
            core.reservations.expire(now_us)
            if token not in core.reservations:
                return False
            for held in core.reservations.close(token):
                given = self._settle_one(held, actual, now_us)
                core.reservations.forget(held, given)
        return True

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line, if it is the last."""
        key, limit, _, context = decision
        if not isinstance(limit, TokenBucket) or context.mark is None:
            return
        mark, cost = context.mark
        table = self._table(limit, context.rule)
        with self._core.lock:
            state = table.get(key)
            after = limit.leave_line(state, mark, self.clock.now_us(), cost)
            if after is not state:
                table.put(key, after)
                table.lines.pop(key, None)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while."""
        assert isinstance(limit, Concurrency)
        table = self._table(limit, rule)
        with self._core.lock:
            after, held = limit.renew(table.get(key), self.clock.now_us(), token)
            if held:
                table.put(key, after)
            return held

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Let go of slots."""
        assert isinstance(limit, Concurrency)
        table = self._table(limit, rule)
        with self._core.lock:
            state = table.get(key)
            after = limit.release(state, self.clock.now_us(), token)
            if after is not state:
                table.put(key, after)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""
        require_key(key)
        table = self._table(limit, rule)
        with self._core.lock:
            now_us = self.clock.now_us()
            state = self._find(table, key, now_us)
            return Usage(limit.used(state, now_us), limit.peek(state, now_us, 1))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        require_key(key)
        table = self._table(limit, rule)
        core = self._core
        with core.lock:
            if table.get(key) is not None:
                table.drop(key)
                core.keys -= 1

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, in the order of their text; the cursor is the last one seen."""
        core = self._core
        with core.lock:
            now_us = self.clock.now_us()
            found = [
                (key, rule or "", table.limit.identity, table)
                for (namespace, rule, _), table in core.tables.items()
                if namespace == self._namespace
                for generation in (table.young, table.old)
                for key in generation
                if key.startswith(prefix)
            ]
        page = nsmallest(
            limit, (f for f in found if "\0".join(f[:3]) > cursor), key=lambda f: f[:3]
        )
        entries = []
        with core.lock:
            for key, rule_id, _, table in page:
                state = table.get(key)
                if state is None or table.limit.idle_at_us(state) <= now_us:
                    continue
                numbers = (table.limit.used(state, now_us), table.limit.idle_at_us(state))
                entries.append(
                    Entry(key, rule_id or None, table.limit.name, table.limit.window_us, *numbers)
                )
        return Page(entries, "\0".join(page[-1][:3]) if len(page) == limit else "")

    @property
    def counters(self) -> Counters:
        """Figures that tell how full the engine is."""
        core = self._core
        return Counters(core.keys, core.dropped, core.shared_decisions, len(core.reservations))

    def save(self) -> None:
        """Write the state file now."""
        core = self._core
        if core.file is None:
            raise UsageError("this engine has no state file; pass state_file= when making it")
        with core.lock:
            data = core.encoded()
        core.file.save(data)

    def close(self) -> None:
        """Save, if there is a state file, and let go of it."""
        file = self._core.file
        if file is not None and not file.closed:
            file.stop_saving()
            self.save()
            file.close()

    def _table(self, limit: Limit, rule: str | None) -> Table:
        tables = self._core.tables
        name = (self._namespace, rule, limit.identity)
        table = tables.get(name)
        return tables.setdefault(name, Table(limit)) if table is None else table

    def _decide(self, request: Request) -> Decision:
        for charge in request.charges:
            require_key(charge.key)
        with self._core.lock:
            now_us = self.clock.now_us()
            if request.reserve_us:
                self._core.reservations.make_way(request.token, now_us)
            steps = self._evaluate(request, now_us)
            if all(step.answer[0] or step.charge.kind is Kind.SHADOW for step in steps):
                return self._grant(request, steps, now_us)
            return self._deny(steps, now_us)

    def _evaluate(self, request: Request, now_us: int) -> list[Step]:
        """Work out every charge in order, each on top of those before it; write nothing."""
        steps: list[Step] = []
        pending: dict[tuple[int, str], State] = {}
        for charge in request.charges:
            key, cost, kind = charge.key, charge.cost, charge.kind
            for limit in charge.limits:
                table = self._table(limit, charge.rule)
                place = (id(table), key)
                first = place not in pending
                before = self._find(table, key, now_us) if first else pending[place]
                if kind is Kind.PEEK:
                    after, answer = before, limit.peek(before, now_us, cost)
                elif kind is Kind.FORCE:
                    after, answer = limit.force(before, now_us, cost)
                elif request.token is not None and isinstance(limit, Concurrency):
                    after, answer = limit.hold(before, now_us, cost, request.token)
                elif request.wait_us and isinstance(limit, TokenBucket):
                    after, answer = limit.line_up(before, now_us, cost, request.wait_us)
                else:
                    after, answer = limit.take(before, now_us, cost)
                pending[place] = after if answer[0] else before
                steps.append(Step(charge, limit, table, before, after, answer, first))
        return steps

    def _grant(self, request: Request, steps: list[Step], now_us: int) -> Decision:
        """Write every charge."""
        decisions = []
        for step in steps:
            shared = False
            if step.after is not step.before:
                shared = self._put(step.table, step.charge.key, step.after, now_us)
            decisions.append(_decision(step, step.answer, degraded=shared))
        if request.reserve_us:
            return combined(decisions, token=self._reserve(request, steps, now_us))
        if request.wait_us and len(steps) == 1 and decisions[0].retry_after_us:
            step = steps[0]
            step.table.lines[step.charge.key] = now_us + decisions[0].retry_after_us
            return combined(decisions, mark=(step.after, step.charge.cost))
        return combined(decisions, token=request.token) if request.token else combined(decisions)

    def _deny(self, steps: list[Step], now_us: int) -> Decision:
        """Write nothing, except what a denial itself changes."""
        decisions = []
        for step in steps:
            answer = step.answer
            if answer[0]:
                answer = step.limit.peek(step.before, now_us, step.charge.cost)
            elif step.after is not step.before and step.first:
                self._put(step.table, step.charge.key, step.after, now_us)
            decisions.append(_decision(step, answer, degraded=False))
        return combined(decisions)

    def _reserve(self, request: Request, steps: list[Step], now_us: int) -> str:
        """Remember where the units were taken, so that they can be settled."""
        token = request.token or secrets.token_hex(16)
        self._core.reservations.open(
            token,
            now_us + request.reserve_us,
            [
                (step.table, step.charge.key, step.limit, step.charge.cost, mark)
                for step in steps
                if step.after is not step.before
                for mark in [step.limit.mark(step.after)]
            ],
        )
        return token

    def _settle_one(self, held: Held, actual: int, now_us: int) -> int:
        """Refund or charge one limit of a reservation; return what was given back."""
        state = self._find(held.table, held.key, now_us)
        given = 0
        if actual > held.cost:
            after, _ = held.limit.force(state, now_us, actual - held.cost)
        elif held.table.lines.get(held.key, 0) > now_us:
            after = state  # Those in line have been told when to start.
        else:
            since = self._core.reservations.refunded_since(held)
            after, given = held.limit.refund(state, held.mark, now_us, held.cost - actual, since)
        if after is not state:
            self._put(held.table, held.key, after, now_us)
        return given

    def _find(self, table: Table, key: str, now_us: int) -> State:
        """The state that counts for a key: its own, or the one it shares with strangers."""
        state = table.get(key)
        if state is None and table.shared:
            index = shared_index(key, self._core.secret)
            state = table.shared.get(index)
            if state is not None and table.limit.idle_at_us(state) <= now_us:
                del table.shared[index]
                return None
        return state

    def _take_new(
        self, table: Table, key: str, limit: Limit, now_us: int, cost: int
    ) -> tuple[Answer, bool]:
        """Take for a key that is not among the young; true when strangers share its state."""
        require_key(key)
        state = self._find(table, key, now_us)
        after, answer = limit.take(state, now_us, cost)
        return answer, after is not state and self._put(table, key, after, now_us)

    def _put(self, table: Table, key: str, state: State, now_us: int) -> bool:
        """Keep what `_find` found and a step has changed; true when strangers share it."""
        if table.get(key) is not None:
            table.put(key, state)
            return False
        core = self._core
        self._sweep(table, now_us)
        full = core.keys >= self.max_keys
        if full or table.shared:
            index = shared_index(key, core.secret)
            if full or index in table.shared:
                table.shared[index] = state
                core.shared_decisions += 1
                return True
        table.put(key, state)
        core.keys += 1
        return False

    def _sweep(self, table: Table, now_us: int) -> None:
        """Do a new key's share of the sweeping; more of it, and everywhere, when memory is full."""
        core = self._core
        dropped = table.sweep(now_us, SWEEP_PER_KEY)
        if core.keys - dropped >= self.max_keys:
            for other in core.tables.values():
                dropped += other.sweep(now_us, SWEEP_WHEN_FULL, hurry=True)
        core.keys -= dropped
        core.dropped += dropped


class _Core:
    """What an engine shares with its scoped twins."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tables: dict[TableName, Table] = {}
        self.reservations = Reservations()
        self.secret = secrets.token_bytes(16)
        self.keys = 0
        self.dropped = 0
        self.shared_decisions = 0
        self.file: StateFile | None = None

    def open_file(self, file: StateFile) -> None:
        """Take over what an earlier process saved."""
        for name, states in file.load().items():
            try:
                table = self.tables[name] = Table(limit_of_identity(name[2]))
                table.young = {key: table.limit.decode(data) for key, data in states.items()}
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise file.refused(f"its body does not make sense ({error})") from error
            self.keys += len(table)
        self.file = file

    def encoded(self) -> dict[TableName, dict[str, Any]]:
        """Every state as plain data."""
        return {
            name: {
                key: table.limit.encode(state)
                for generation in (table.old, table.young)
                for key, state in generation.items()
            }
            for name, table in self.tables.items()
        }


def _decision(step: Step, answer: Answer, *, degraded: bool) -> Decision:
    charge = step.charge
    context = ENGINE
    if degraded or charge.rule is not None or charge.kind is Kind.SHADOW:
        source: Source = "shadow" if charge.kind is Kind.SHADOW else "engine"
        context = Context(source, degraded, charge.rule)
    return Decision((charge.key, step.limit, answer, context))
