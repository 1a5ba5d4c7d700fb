"""The memory engine: states in dicts, one lock, no I/O.

Exact for one process, and safe under threads. Memory is bounded by `max_keys` without ever forgetting a key
that is at its limit (see `_core.py` and `_table.py`). With a `state_file` a restart keeps its counts (see
`state_file.py`). A forked child goes on with a copy of the counts, and counts for itself from then on.

The usual hit goes another way, written for speed (see `_hits.py`). Everything else goes through `_decide`, which reads
like the contract.
"""

from __future__ import annotations

import copy
import secrets
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ..algorithms import NEVER, Concurrency, Limit, TokenBucket
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import Charge, Kind, Request, require_cost, require_key
from ..clock import Clock, SystemClock
from ..decision import ENGINE, Context, Decision, Source
from ..errors import UsageError
from ._core import Core
from ._hits import Known, hit_of, run_of, take_all_of
from .base import Entry, Hit, HitRun, Page, Usage, combined, require_page
from .state_file import SAVE_EVERY, StateFile

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ..algorithms import Answer, State
    from ._reservations import Held
    from ._table import Place, Table

FEW = 64
"""So many tables that were dropped are not worth looking for."""


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

    blocking = False

    def __init__(
        self,
        *,
        max_keys: int = 1_000_000,
        clock: Clock | None = None,
        state_file: str | os.PathLike[str] | None = None,
        save_every: float | None = None,
    ) -> None:
        require_whole("max_keys", max_keys, 1, MAX_EXACT)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._namespace = ""
        self._by_rule: dict[str | None, Known] = {}  # Of this namespace.
        self._core = Core(max_keys, self.clock)
        self._take_all = take_all_of(self._core, self._by_rule)
        if state_file is not None:
            file = StateFile(state_file, SAVE_EVERY if save_every is None else save_every)
            self._core.open_file(file)
            file.start_saving(self.save)
        elif save_every is not None:
            raise UsageError("save_every needs a state_file: there is nothing to save to")

    def scoped(self, namespace: str) -> MemoryEngine:
        """The same states and bounds, under another namespace."""
        twin = copy.copy(self)
        twin._namespace, twin._by_rule = namespace, {}
        twin._take_all = take_all_of(twin._core, twin._by_rule)
        return twin

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key: the fast path."""
        table = self._bound_table(limit, rule)
        return hit_of(self._core, table, limit, self._by_rule[rule].context)

    def bind_run(self, limit: Limit, rule: str | None = None) -> HitRun:
        """`bind` for several keys: as many hits in the order given, under one lock and at one moment.

        Keys that are no keys are refused where they stand, so those in front of one have been charged by then.
        """
        table = self._bound_table(limit, rule)
        return run_of(self._core, table, limit, self._by_rule[rule].context)

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""
        if len(requests) == 1:  # Nearly always, and then a loop would be a tenth of the work.
            return [self._decide(requests[0])]
        return [self._decide(request) for request in requests]

    def settle(self, token: str, actual: int) -> bool:
        """Refund or charge the difference between a reservation and what was used."""
        require_cost(actual)
        core = self._core
        with core.lock:
            now_us = self.clock.now_us()
            core.reservations.expire(now_us)
            name = (self._namespace, token)
            if name not in core.reservations:
                return False
            for held in core.reservations.close(name):
                given = self._settle_one(held, actual, now_us)
                core.reservations.forget(held, given)
        return True

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line, if it is the last."""
        key, limit, context = decision.key, decision.limited_by, decision.context
        if not isinstance(limit, TokenBucket) or context.mark is None:
            return
        mark, cost = context.mark
        core = self._core
        with core.lock:
            table = self._table(limit, context.rule)
            now_us = self.clock.now_us()
            state = core.find(table, key, now_us)
            after = limit.leave_line(state, mark, now_us, cost)
            if after is not state:
                core.keep(table, key, state, after, now_us)
                self._note_line(table, key, limit, after, now_us)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while."""
        assert isinstance(limit, Concurrency)
        core = self._core
        with core.lock:
            table = self._table(limit, rule)
            now_us = self.clock.now_us()
            state = core.find(table, key, now_us)
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
            state = core.find(table, key, now_us)
            after = limit.release(state, now_us, token)
            core.keep(table, key, state, after, now_us)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""
        require_key(key)
        with self._core.lock:
            table = self._table(limit, rule)
            now_us = self.clock.now_us()
            state = self._core.find(table, key, now_us)
            return Usage(limit.used(state, now_us), limit.peek(state, now_us, 1))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used, and what strangers have if it shares a state with them.

        Reservations of it end: to settle one is then answered with false.
        """
        require_key(key)
        with self._core.lock:
            table = self._table(limit, rule)
            self._core.forget(table, key, self.clock.now_us())

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, in the order of their text; the cursor is the last one seen."""
        require_page(prefix, cursor, limit)
        core = self._core
        with core.lock:  # Only to copy: decisions wait for as long as it is held.
            now_us = self.clock.now_us()
            copies = [
                (rule, identity, table, [*table.young, *table.old])
                for (namespace, rule, identity), table in core.tables.items()
                if namespace == self._namespace
            ]
        found = [
            ("\0".join((key, rule or "", identity)), key, rule, table)
            for rule, identity, table, keys in copies
            for key in keys
            if key.startswith(prefix)
        ]
        page = nsmallest(limit, (one for one in found if one[0] > cursor), key=itemgetter(0))
        entries = []
        with core.lock:
            for _, key, rule, table in page:
                state, last = table.get(key), table.limit
                idle_at_us = 0 if state is None else last.idle_at_us(state)
                if idle_at_us > now_us:
                    used = last.used(state, now_us)
                    numbers = (last.window_us, used, idle_at_us, last.limit, not table.several)
                    entries.append(Entry(key, rule, last.name, *numbers))
        return Page(entries, page[-1][0] if len(page) == limit else "")

    @property
    def max_keys(self) -> int:
        """How many keys can have a state of their own."""
        return self._core.max_keys

    @property
    def counters(self) -> Counters:
        """Figures that tell how full the engine is."""
        core = self._core
        return Counters(core.keys, core.dropped, core.shared_decisions, len(core.reservations))

    def has_room_for(self, limit: Limit, windows: int) -> bool:
        """Whether counting by `limit` needs no more than so many windows, over all rules and namespaces; those that are over do not count."""
        core = self._core
        with core.lock:
            known = (self._namespace, None, limit.identity) in core.tables
            return known or core.has_room(windows)

    def save(self) -> None:
        """Write the state file now."""
        core = self._core
        if core.file is None:
            raise UsageError("this engine has no state file; pass state_file= when making it")
        core.file.require_held()
        with core.lock:
            content = core.content()
        core.file.save(content)

    def close(self) -> None:
        """Save, if there is a state file, and let go of it. A forked child leaves it to its parent."""
        file = self._core.file
        if file is not None and file.held:
            file.stop_saving()
            try:
                self.save()
            finally:
                file.close()

    def _bound_table(self, limit: Limit, rule: str | None) -> Table:
        """The table for hits of a limit, which it keeps in mind to tell what keys have used."""
        with self._core.lock:
            table = self._table(limit, rule)
            table.note(limit)
            return table

    def _table(self, limit: Limit, rule: str | None) -> Table:
        """Where states of a limit are; the caller holds the lock."""
        known = self._by_rule.get(rule)
        if known is None:
            context = ENGINE if rule is None else Context(rule=rule)
            known = self._by_rule.setdefault(rule, Known({}, context))
        table = known.tables.get(limit.identity)
        if table is None or table.dropped:
            self._forget_dropped(known.tables)
            name = (self._namespace, rule, limit.identity)
            table = self._core.table(name, limit) if table is None else self._core.live(table)
            known.tables[limit.identity] = table
        return table

    def _forget_dropped(self, known: dict[str, Table]) -> None:
        """Hold on to no more tables than there are, or a few."""
        if len(known) > 2 * len(self._core.tables) + FEW:
            for identity in [identity for identity, table in known.items() if table.dropped]:
                del known[identity]

    def _decide(self, request: Request) -> Decision:
        granted = self._take_all(request)
        if granted is not None:
            return granted
        for charge in request.charges:
            require_key(charge.key)
        with self._core.lock:
            now_us = self.clock.now_us()
            if request.reserve_us:
                self._core.reservations.make_way(self._namespace, request.token, now_us)
            steps = self._evaluate(request, now_us)
            if all(step.answer[0] or step.charge.kind is Kind.SHADOW for step in steps):
                return self._grant(request, steps, now_us)
            if not all(step.first for step in steps):
                steps = list(map(_hopeless, steps, self._evaluate(request, now_us, unused=True)))
            return self._deny(steps, now_us)

    def _evaluate(self, request: Request, now_us: int, *, unused: bool = False) -> list[Step]:
        """Work out every charge in order, each on top of those before it; write nothing.

        As it is, or as it would be if no key of the request had ever been used.
        """
        core = self._core
        steps: list[Step] = []
        pending: dict[tuple[int, Place], State] = {}
        for charge in request.charges:
            for limit in charge.limits:
                table = self._table(limit, charge.rule)
                if charge.kind is not Kind.PEEK:
                    table.note(limit)
                place = (id(table), core.place(table, charge.key, now_us))
                first = place not in pending
                if first:
                    before = None if unused else core.find(table, charge.key, now_us)
                else:
                    before = pending[place]
                after, answer = _stepped(request, charge, limit, before, now_us)
                pending[place] = after if answer[0] else before
                steps.append(Step(charge, limit, table, before, after, answer, first))
        return steps

    def _grant(self, request: Request, steps: list[Step], now_us: int) -> Decision:
        """Write every charge."""
        decisions = [self._written(step, step.after, step.answer, now_us) for step in steps]
        if request.reserve_us:
            return combined(decisions, token=self._reserve(request, steps, now_us))
        charge, limit, table, _, after, answer, _ = steps[0]
        if request.wait_us and len(steps) == 1 and answer[2] and isinstance(limit, TokenBucket):
            self._note_line(table, charge.key, limit, after, now_us)
            return combined(decisions, mark=(after, charge.cost))
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
        core.shared_decisions += shared
        context = ENGINE
        if shared or charge.rule is not None or charge.kind is Kind.SHADOW:
            source: Source = "shadow" if charge.kind is Kind.SHADOW else "engine"
            context = Context(source, shared, charge.rule)
        return Decision(charge.key, step.limit, answer, context)

    def _note_line(
        self, table: Table, key: str, limit: TokenBucket, state: State, now_us: int
    ) -> None:
        """Remember until when those in line wait: no refund may let a newcomer start beside them."""
        place = self._core.place(table, key, now_us)
        table.set_line(place, limit.line_ends_us(state, now_us))

    def _reserve(self, request: Request, steps: list[Step], now_us: int) -> str:
        """Remember where the units were taken, so that they can be settled; also where it was none of them."""
        token = request.token or secrets.token_hex(16)
        self._core.reservations.open(
            (self._namespace, token),
            now_us + request.reserve_us,
            [
                (step.table, step.charge.key, step.limit, step.charge.cost, mark)
                for step in steps
                if step.answer[0] and step.charge.kind is not Kind.PEEK
                for mark in [step.limit.mark(step.after) if step.charge.cost else None]
            ],
        )
        return token

    def _settle_one(self, held: Held, actual: int, now_us: int) -> int:
        """Refund or charge one limit of a reservation; return what was given back."""
        core = self._core
        table = core.live(held.table)
        state = core.find(table, held.key, now_us)
        given = 0
        if actual > held.cost:
            after, _ = held.limit.force(state, now_us, actual - held.cost)
        elif (
            actual == held.cost or table.lines.get(core.place(table, held.key, now_us), 0) > now_us
        ):
            after = state  # Else: those in line have been told when to start.
        else:
            since = core.reservations.refunded_since(held)
            after, given = held.limit.refund(state, held.mark, now_us, held.cost - actual, since)
        core.keep(table, held.key, state, after, now_us)
        return given


def _hopeless(step: Step, unused: Step) -> Step:
    """The step, never to be retried if it is denied also on unused keys: charges of one key may add up to too much."""
    if step.answer[0] or unused.answer[0]:
        return step
    allowed, remaining, _, reset_after_us, level = step.answer
    return step._replace(answer=(allowed, remaining, NEVER, reset_after_us, level))


def _stepped(
    request: Request, charge: Charge, limit: Limit, state: State, now_us: int
) -> tuple[State, Answer]:
    """What one charge makes of one state, and the answer to it."""
    cost = charge.cost
    if charge.kind is Kind.PEEK:
        return state, limit.peek(state, now_us, cost)
    if charge.kind is Kind.FORCE:
        return limit.force(state, now_us, cost)
    if request.token is not None and isinstance(limit, Concurrency):
        return limit.hold(state, now_us, cost, request.token)
    if request.wait_us and isinstance(limit, TokenBucket):
        return limit.line_up(state, now_us, cost, request.wait_us)
    return limit.take(state, now_us, cost)
