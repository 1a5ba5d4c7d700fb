"""The memory engine: states in dicts, one lock, no I/O.

Exact for one process, and safe under threads. Memory is bounded by `max_keys` and `max_bytes` without ever forgetting a
key that is at its limit (see `_state_store.py` and `_state_table.py`). With a `state_file` a restart keeps its counts
(see `state_file.py`). A forked child starts with a copy of the counts, and counts separately from then on.

The common hit takes a faster path (see `_hits.py`). Everything else goes through `_decide`, which reads like the
contract.
"""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING

from ..algorithms import Concurrency, Limit, TokenBucket
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import ChargeSet, other_charges, require_costs, require_key
from ..charge_kind import ChargeKind
from ..clock import Clock, SystemClock
from ..decision import ENGINE, Context, Decision, Source
from ..errors import UsageError
from ._hits import Known, hit_of, run_of, take_all_of
from ._listing import page_of, states_of
from ._memory_budget import Counters
from ._reservations import Held, Taken
from ._state_store import StateStore
from ._steps import Step, is_watched, marked_never, on_top, stepped
from .base import CertainRun, EngineDescription, Hit, KeyPage, Usage, combined, require_page
from .meter import Meter
from .state_file import SAVE_EVERY, StateFile

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Self

    from ..algorithms import Answer, State
    from ._state_table import Place, StateTable

MAX_BYTES = 536_870_912
MIN_BYTES = 100_000
FEW = 64
"""So many tables that were dropped are not worth looking for."""


def description(*, state_file: bool, meter: Meter | None = None) -> EngineDescription:
    """The description of a memory engine."""
    kept = "the state file keeps counts; a kill loses what came after the last save"
    return EngineDescription(
        store="memory",
        shared=False,
        promise="each limit as its algorithm guarantees, in this one process",
        when_lost=(
            "restart",
            kept if state_file else "counts start from zero, so each limit can be used once more",
        ),
        meter=meter,
    )


class MemoryEngine:
    """Keeps states in this process.

    >>> from headgate import Limiter, MemoryEngine
    >>> limiter = Limiter(MemoryEngine(max_keys=100_000))
    """

    blocking = False

    def __init__(
        self,
        *,
        max_keys: int = 1_000_000,
        max_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
        state_file: str | os.PathLike[str] | None = None,
        save_every: float | None = None,
    ) -> None:
        require_whole("max_keys", max_keys, 1, MAX_EXACT)
        require_whole("max_bytes", max_bytes, MIN_BYTES, MAX_EXACT)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._namespace = ""
        self._by_rule: dict[str | None, Known] = {}  # Of this namespace.
        self._core = self._new_store(max_keys, max_bytes)
        self._take_all = take_all_of(self._core, self._by_rule)
        if state_file is not None:
            file = StateFile(state_file, SAVE_EVERY if save_every is None else save_every)
            self._core.open_file(file)
            file.start_saving(self.save)
        elif save_every is not None:
            raise UsageError("save_every needs a state_file: there is nothing to save to")

    def _new_store(self, max_keys: int, max_bytes: int) -> StateStore:
        return StateStore(max_keys, max_bytes, self.clock)

    def scoped(self, namespace: str) -> Self:
        """The same states and bounds, under another namespace."""
        twin = copy.copy(self)
        twin._namespace, twin._by_rule = namespace, {}
        twin._take_all = take_all_of(twin._core, twin._by_rule)
        return twin

    @property
    def unguarded(self) -> MemoryEngine:
        """See `Engine.unguarded`."""
        return self

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        state_file = self._core.file is not None
        return description(state_file=state_file, meter=Meter(lambda: self.counters.gauges))

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key: the fast path."""
        table = self._bound_table(limit, rule)
        return hit_of(self._core, table, limit, self._by_rule[rule].context)

    def bind_run(self, limit: Limit, rule: str | None = None) -> CertainRun:
        """`bind` for several keys: as many hits in the order given, under one lock and at one moment.

        Keys that are no keys are refused where they stand, so those in front of one have been charged by then.
        """
        table = self._bound_table(limit, rule)
        return run_of(self._core, table, limit, self._by_rule[rule].context)

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """Decide each request, all or nothing."""
        if len(requests) == 1:  # Nearly always, and then a loop would be a tenth of the work.
            return [self._decide(requests[0])]
        return [self._decide(request) for request in requests]

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """Refund or charge the difference between a reservation and what was used."""
        used = require_costs(actual)
        core = self._core
        with core.lock:
            now_us = self.clock.now_us()
            core.reservations.expire(now_us)
            name = (self._namespace, token)
            charges = core.reservations.charges(name)
            if not charges:
                return False
            if len(used) not in (1, charges):
                raise other_charges(len(used))
            for held in core.reservations.close(name):
                self._settle_one(held, used[held.charge % len(used)], now_us)
        return True

    def withdraw(self, request: ChargeSet) -> None:
        """Give back what a request has reserved."""
        if request.token is not None and request.reserve_us:
            self.settle(request.token, 0)

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line, once no caller is left behind it."""
        key, limit, context = decision.key, decision.limited_by, decision.context
        if not isinstance(limit, TokenBucket) or context.mark is None:
            return
        core = self._core
        with core.lock:
            table = self._table(limit, context.rule)
            now_us = self.clock.now_us()
            line = table.line(core.place(table, key, now_us), now_us)
            state = core.find(table, key, limit, now_us)
            if line is not None and state is not None:
                after = line.leave(context.mark, limit, state, now_us)
                core.keep(table, key, state, after, now_us)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while."""
        assert isinstance(limit, Concurrency)
        core = self._core
        with core.lock:
            table = self._table(limit, rule)
            now_us = self.clock.now_us()
            state = core.find(table, key, limit, now_us)
            after, held = limit.renew(state, now_us, token)
            core.keep(table, key, state, after, now_us)
            return held

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Let go of slots."""
        assert isinstance(limit, Concurrency)
        core = self._core
        with core.lock:
            table = self._table(limit, rule)
            now_us = self.clock.now_us()
            state = core.find(table, key, limit, now_us)
            after = limit.release(state, now_us, token)
            core.keep(table, key, state, after, now_us)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""
        require_key(key)
        with self._core.lock:
            rule, limit = self._core.counted(self._namespace, rule, limit, key)
            table = self._table(limit, rule)
            now_us = self.clock.now_us()
            state = self._core.find(table, key, limit, now_us)
            return Usage(limit.used(state, now_us), limit.peek(state, now_us, 1))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Reset the key's usage, and that of other keys if it shares a state with them.

        Reservations of it end: to settle one is then answered with false.
        """
        require_key(key)
        with self._core.lock:
            rule, limit = self._core.counted(self._namespace, rule, limit, key)
            table = self._table(limit, rule)
            self._core.forget(table, key, self.clock.now_us())

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """Keys in use, in the order of their text; the cursor is the last one seen."""
        require_page(prefix, cursor, limit)
        return page_of(self._core, self._namespace, self.clock, prefix, cursor, limit)

    def states_of(self, key: str) -> list[tuple[str | None, Limit]]:
        """The rules and limits that have a state for this key. Its time grows with the windows in use, not the keys."""
        return states_of(self._core, self._namespace, key)

    @property
    def max_keys(self) -> int:
        """How many keys can have a state of their own."""
        return self._core.max_keys

    @property
    def max_bytes(self) -> int:
        """How many bytes all keys and windows may weigh."""
        return self._core.max_bytes

    @property
    def counters(self) -> Counters:
        """Figures that tell how full the engine is."""
        core = self._core
        reservations = len(core.reservations)
        return Counters(core.keys, core.dropped, core.shared_decisions, reservations, core.bytes)

    def save(self) -> None:
        """Write the state file now."""
        core = self._core
        if core.file is None:
            raise UsageError("this engine has no state file; pass state_file= when you create it")
        core.save_to(core.file)

    def close(self) -> None:
        """Save, if there is a state file, and let go of it. A forked child leaves it to its parent."""
        file = self._core.file
        if file is not None and file.held:
            file.stop_saving()
            try:
                self.save()
            finally:
                file.close()

    def _bound_table(self, limit: Limit, rule: str | None) -> StateTable:
        """The table for hits of a limit, which it keeps in mind to tell what keys have used."""
        with self._core.lock:
            if self._core.counted(self._namespace, rule, limit)[1] is not limit:
                self._known(rule)
                return self._core.detached_table((self._namespace, rule, limit.identity), limit)
            table = self._table(limit, rule)
            table.note(limit)
            return table

    def _table(self, limit: Limit, rule: str | None) -> StateTable:
        """Where states of a limit are; the caller holds the lock."""
        known = self._known(rule)
        table = known.tables.get(limit.identity)
        if table is None or table.dropped:
            self._forget_dropped(known.tables)
            name = (self._namespace, rule, limit.identity)
            table = self._core.table(name, limit) if table is None else self._core.live(table)
            if limit.window_us:  # Slots are weighed one by one, so none are taken by the fast path.
                known.tables[limit.identity] = table
        return table

    def _known(self, rule: str | None) -> Known:
        known = self._by_rule.get(rule)
        if known is None:
            tables = len(self._core.tables)
            if len(self._by_rule) > tables + tables // 4 + FEW:  # Rules come and go.
                for name in [name for name, one in self._by_rule.items() if _is_idle(one)]:
                    del self._by_rule[name]
            context = ENGINE if rule is None else Context(rule=rule)
            known = self._by_rule.setdefault(rule, Known({}, context))
        return known

    def _forget_dropped(self, known: dict[str, StateTable]) -> None:
        """Hold on to few more tables than there are: a dropped one takes up memory that nothing weighs."""
        tables = len(self._core.tables)
        if len(known) > tables + tables // 8 + FEW:
            for identity in [identity for identity, table in known.items() if table.dropped]:
                del known[identity]

    def _decide(self, request: ChargeSet) -> Decision:
        granted = self._take_all(request)
        if granted is not None:
            return granted
        for charge in request.charges:
            require_key(charge.key)
        with self._core.lock:
            now_us = self.clock.now_us()
            if request.reserve_us:
                self._core.reservations.require_free_token(self._namespace, request.token, now_us)
            try:
                steps = self._evaluate(request, now_us)
                if all(step.answer[0] or step.charge.kind is ChargeKind.SHADOW for step in steps):
                    return self._grant(request, steps, now_us)
                if not all(step.first for step in steps):
                    unused = self._evaluate(request, now_us, unused=True)
                    steps = list(map(marked_never, steps, unused))
                return self._deny(steps, now_us)
            finally:
                self._core.in_hand.clear()

    def _evaluate(self, request: ChargeSet, now_us: int, *, unused: bool = False) -> list[Step]:
        """Work out every charge in order, each on top of those before it; write nothing.

        As it is, or as it would be if no key of the request had ever been used.
        """
        core = self._core
        steps: list[Step] = []
        pending: dict[tuple[int, Place], State] = {}
        for number, charge in enumerate(request.charges):
            for limit in charge.limits:
                rule, limit = core.counted(self._namespace, charge.rule, limit, charge.key)  # noqa: PLW2901
                table = self._table(limit, rule)
                core.in_hand.append((table.name, charge.key))
                if charge.kind is not ChargeKind.PEEK:
                    table.note(limit)
                at = core.place(table, charge.key, now_us)
                place = (id(table), at)
                first, before = place not in pending, pending.get(place)
                if first and not unused:
                    before = core.find(table, charge.key, limit, now_us)
                after, answer = stepped(request, charge, limit, before, now_us)
                low = 0
                if request.reserve_us and is_watched(limit, charge, answer):
                    after, low = limit.watch(after)
                pending[place] = after if answer[0] else before
                steps.append(
                    Step(charge, number, limit, table, at, before, after, answer, first, low)
                )
        return steps

    def _grant(self, request: ChargeSet, steps: list[Step], now_us: int) -> Decision:
        """Write every charge."""
        core, decisions = self._core, []
        for number, step in enumerate(steps):
            key = step.charge.key
            if number and core.place(step.table, key, now_us) != step.place:
                found = core.find(step.table, key, step.limit, now_us)
                steps[number] = step = on_top(request, step, found, now_us)  # noqa: PLW2901
            decisions.append(self._written(step, step.after, step.answer, now_us))
        step = steps[0]
        mark = None
        if request.wait_us and len(steps) == 1 and step.answer[2]:
            mark = self._stand_in_line(step, now_us)
        if request.reserve_us:
            return combined(decisions, token=self._reserve(request, steps, now_us), mark=mark)
        if mark is not None:
            return combined(decisions, mark=mark)
        return combined(decisions, token=request.token) if request.token else combined(decisions)

    def _deny(self, steps: list[Step], now_us: int) -> Decision:
        """Write nothing, except what a denial itself changes."""
        decisions = []
        for step in steps:
            after, answer = step.before, step.answer
            if answer[0]:
                answer = step.limit.peek(step.before, now_us, step.charge.cost)
            elif step.first:
                after = step.after
            decisions.append(self._written(step, after, answer, now_us))
        return combined(decisions)

    def _written(self, step: Step, after: State, answer: Answer, now_us: int) -> Decision:
        """Write what has become of a step's state, and say how the step was answered."""
        core, charge = self._core, step.charge
        shared = core.keep(step.table, charge.key, step.before, after, now_us)
        if step.limit not in charge.limits:  # A stricter one counts in its place.
            shared = True
        core.shared_decisions += shared
        context = ENGINE
        if shared or charge.rule is not None or charge.kind is ChargeKind.SHADOW:
            source: Source = "shadow" if charge.kind is ChargeKind.SHADOW else "engine"
            context = Context(source, shared, charge.rule)
        return Decision(charge.key, step.limit, answer, context)

    def _stand_in_line(self, step: Step, now_us: int) -> int:
        """Remember who waits, and until when: no refund may let a new caller start at the same time."""
        table, answer = step.table, step.answer
        place = self._core.place(table, step.charge.key, now_us)
        name = now_us + answer[3]
        if step.charge.cost:
            line = table.line(place, now_us) or table.new_line(place)
            line.join(name, step.before, step.after, now_us + answer[2], now_us)
        return name

    def _reserve(self, request: ChargeSet, steps: list[Step], now_us: int) -> str:
        """Remember where the units were taken, so that they can be settled; also where it was none of them."""
        token = request.token or secrets.token_hex(16)
        core = self._core
        taken = []
        for charge, number, limit, table, _, _, after, answer, _, low in steps:
            if answer[0] and charge.kind is not ChargeKind.PEEK:
                watched = is_watched(limit, charge, answer)
                place = core.place(table, charge.key, now_us) if watched else None
                mark = limit.mark(after) if charge.cost else None
                taken.append(Taken(table, charge.key, limit, charge.cost, mark, number, place, low))
        ends_us = now_us + request.reserve_us
        core.reservations.open((self._namespace, token), ends_us, len(request.charges), taken)
        return token

    def _settle_one(self, held: Held, actual: int, now_us: int) -> None:
        """Refund or charge one limit of a reservation."""
        core, limit, table = self._core, held.limit, self._core.live(held.table)
        if actual > held.cost:  # If its state was idle since, the key may be counted elsewhere.
            table, limit = core.counting(table, limit, held.key)
        place = core.place(table, held.key, now_us)
        state = after = core.find(table, held.key, limit, now_us)
        if actual > held.cost:
            after, _ = limit.force(state, now_us, actual - held.cost)
        # Those in line have been told when to start; and a state that has moved was idle in between.
        elif (
            actual < held.cost and table.line(place, now_us) is None and held.place in (None, place)
        ):
            low = min(core.reservations.low_since(held), limit.low(state))
            after, given = limit.refund(state, held.mark, now_us, held.cost - actual, low)
            core.reservations.note_refund(held, given)
        if core.reservations.forget(held) and (held.place, held.table.name) == (place, table.name):
            after = limit.unwatch(after)
        core.keep(table, held.key, state, after, now_us)


def _is_idle(known: Known) -> bool:
    """Whether nothing is kept of a rule."""
    return all(table.dropped for table in known.tables.values())
