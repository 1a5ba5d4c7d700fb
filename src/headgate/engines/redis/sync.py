"""RedisEngine: the blocking shell."""

from __future__ import annotations

import time
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ...algorithms import CalendarWindow
from ...charge import ONE, Charge, ChargeSet
from ...decision import Decision
from ...errors import EngineError
from ..verbs import run
from . import cross_slot
from .connection import Pool
from .cross_slot import Group, SlotStep, decide_across_slots, groups_of, perform
from .evictions import Evictions
from .failures import (
    NotSent,
    Refused,
    Unanswered,
    clock_keeps_jumping,
    no_answer,
    refused,
    timed_out,
    unanswered,
)
from .operations import STALE_TRIES
from .options import shown
from .parallel_discovery import PATIENCE_S, ParallelDiscovery
from .sending import (
    Delay,
    Discover,
    Drop,
    RoutedCommand,
    Send,
    Step,
    note_reply,
    send_with_repair,
)
from .shell import Shell
from .topology import Sentinel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ..base import Hit, KeyPage, Usage
    from .operations import Operations
    from .options import Address
    from .packed_requests import PackedRequest, PlainRequest
    from .topology import Question


EVICTION_CHECK_S = 0.25
LOOK_AGAIN_S = 0.002
DISCOVERY_TIMED_OUT = "no server answered the discovery in time"


class RedisEngine(Shell):
    """Stores states in Redis or Valkey, for threads and plain functions."""

    blocking = True

    def _open(self) -> None:
        self._pool = Pool(self.options)
        self._eviction_checked = False

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key, in one round trip."""
        operations = self._operations
        plain = operations.codec.plain_maker(limit, rule)
        is_calendar = isinstance(limit, CalendarWindow)

        def hit(key: str, cost: int) -> Decision:
            if cost is not ONE or is_calendar:
                return self.decide([ChargeSet((Charge(key, limit, cost, rule=rule),))])[0]
            return self._take(operations, plain(key))

        return hit

    def bind_run(self, limit: Limit, rule: str | None = None) -> None:
        """Not supported: every key is a round trip, or part of a batch."""

    def _take(self, operations: Operations, part: PlainRequest) -> Decision:
        """Take one unit: a single direct attempt, which is nearly always enough, else with repair."""
        seconds = self._deciding
        ends = time.monotonic() + seconds
        slot, form = operations.slot(part), part[2]
        words = operations.words(form)
        reply = self._try(slot, operations.packed((part,), form, words), seconds)
        if type(reply) is not list:
            reply = self._run(operations.routed(slot, [part], form, words), ends, first=reply)
        answer = operations.codec.plain_answer(reply)
        if answer is not None:
            return Decision(part[0], form.limit, answer, form.context)
        (decision,) = operations.answers([part], reply)
        assert decision is not None  # Only a calendar can be out of date.
        return decision

    @property
    def _deciding(self) -> float:
        """Seconds that a decision may take; more at the start."""
        return self.options.deciding if self._pool.has_started else self.options.deadline

    def _try(self, slot: int, packed: bytes, seconds: float) -> Any:
        """The reply to a single attempt; or why it was not sent, `None` if the server is not known."""
        address = self._topology.address(slot)
        if address is None or self._topology.skips(address):
            return None
        try:
            reply = self._pool.call(address, packed, seconds)
        except NotSent as error:
            self._topology.forget(address)
            return error
        except (Refused, Unanswered) as error:
            self._topology.forget(address)
            raise (
                refused(str(error)) if isinstance(error, Refused) else unanswered(error)
            ) from error
        note_reply(reply, address, self._topology)
        if not self._eviction_checked:
            self._check_eviction(address)
        return reply

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """Decide each request, all or nothing."""
        return self._decide(requests)

    def _decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        if self._operations.clustered:
            grouped = [groups_of(request, self._operations.codec.keys.tag) for request in requests]
            if any(len(groups) > 1 for groups in grouped):
                return [
                    self._decide_across_slots(request, groups)
                    for request, groups in zip(requests, grouped, strict=True)
                ]
        ends = time.monotonic() + self._deciding
        decisions: dict[int, Decision] = {}
        for batch in self._operations.batches(requests):
            reply = self._run(batch.routed, ends)
            answers = self._operations.answers(batch.parts, reply)
            for place, part, decision in zip(batch.places, batch.parts, answers, strict=True):
                if decision is None:  # The store's clock is in another period than ours.
                    decision = self._ask_again(part, reply[0], ends)  # noqa: PLW2901
                decisions[place] = decision
        return [decisions[place] for place in range(len(requests))]

    def _ask_again(self, part: PackedRequest | PlainRequest, now_us: int, ends: float) -> Decision:
        """Send a request again, with calendars for the store's time."""
        operations = self._operations
        for _ in range(STALE_TRIES):
            again = operations.again(part, now_us)
            reply = self._run(operations.routed(operations.slot(again), [again]), ends)
            (decision,) = operations.answers([again], reply)
            if decision is not None:
                return decision
            part, now_us = again, reply[0]
        raise clock_keeps_jumping()

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """Correct a reservation to the actual cost, once."""
        return run(self._settle(token, actual))

    def settle_each(self, settlements: Sequence[tuple[str, int]]) -> None:
        """`settle` for several reservations; whether they existed is not told."""
        run(self._settle_each(settlements))

    def withdraw(self, request: ChargeSet) -> None:
        """Give back what a request has reserved, or will have."""
        run(self._withdraw(request))

    def leave_line(self, decision: Decision) -> None:
        """Give up a place in line; it is given back once nobody waits behind it."""
        run(self._leave_line(decision))

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold slots for another term."""
        held: bool = self._run(self._operations.slots(key, limit, token, rule, renew=True)) == [1]
        return held

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Release slots."""
        self._run_to_completion(self._operations.slots(key, limit, token, rule, renew=False))

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and the answer that a hit of one unit would get."""
        return run(self._usage(key, limit, rule))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        self._run(self._operations.reset(key, limit, rule))

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """Keys in use, by SCAN: some may come twice, but none that stays in use is missed."""
        return run(self._list_keys(prefix, cursor, limit))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _decide_across_slots(self, request: ChargeSet, groups: list[Group]) -> Decision:
        """Run the steps within one deadline; an interrupt leaves nothing charged."""
        if len(groups) == 1:
            return self.decide([request])[0]
        ends = time.monotonic() + self._deciding
        steps = decide_across_slots(request, groups)
        taken: list[str] = []
        try:
            decision = run(perform(steps, lambda step: self._do_slot_step(step, ends), taken))
        except EngineError:  # The steps have already given everything back.
            raise
        except BaseException:
            self._undo(taken, ends)
            raise
        assert decision is not None
        return decision

    def _do_slot_step(self, step: SlotStep, ends: float) -> Any:
        match step:
            case cross_slot.UndoStep(token):
                return self._undo([token], ends)
            case cross_slot.PeekStep(request):
                return self._decide_one(request, ends, look=True)
            case cross_slot.Take(request, name):
                return self._decide_one(request, ends, name=name)

    def _undo(self, tokens: list[str], ends: float) -> None:
        """Give back what is possible within half a deadline; errors are ignored, because no caller is left."""
        until = ends + self.options.deadline / 2
        for routed in [one for token in tokens for one in self._operations.settle(token, 0)]:
            with suppress(EngineError):
                self._run(routed, until)

    def _decide_one(
        self, request: ChargeSet, ends: float, *, look: bool = False, name: str | None = None
    ) -> Decision:
        """Decide a request within one slot, or only peek."""
        part = self._operations.codec.part(request, look=look, name=name)
        reply = self._run(self._operations.routed(self._operations.slot(part), [part]), ends)
        (decision,) = self._operations.answers([part], reply)
        return self._ask_again(part, reply[0], ends) if decision is None else decision

    def _nodes(self) -> list[Address]:
        if self._topology.address(0) is None:
            try:
                self._discover(0, time.monotonic() + self.options.deadline)
            except (NotSent, Refused) as error:
                raise no_answer(error) from error
        return self._known_nodes()

    def _ask_node(self, address: Address, command: tuple[Any, ...]) -> Any:
        try:
            reply = self._pool.call(address, command, self.options.deadline)
        except (NotSent, Refused, Unanswered) as error:
            self._topology.forget(address)
            raise no_answer(error) from error
        if isinstance(reply, Exception):
            raise refused(str(reply))
        return reply

    def _run(self, routed: RoutedCommand, ends: float | None = None, first: Any = None) -> Any:
        """Send a command, with repair, within the deadline or until `ends`.

        `first` is the reply to a first attempt if there was one, or why nothing was sent.
        """
        seconds = self.options.deadline if ends is None else self._deciding
        ends = time.monotonic() + seconds if ends is None else ends
        steps = send_with_repair(routed, self._topology, self._dialect)
        outcome: Any = None
        failure: Exception | None = None
        trouble: Exception | None = None
        if isinstance(first, NotSent):
            trouble, first = first, None
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(outcome)
                trouble = failure or getattr(step, "reason", None) or trouble
                outcome = failure = None
                if time.monotonic() >= ends:
                    self._pool.has_started = True
                    raise timed_out(seconds, trouble) from trouble
                if first is not None and isinstance(step, Send):
                    outcome, first = first, None
                    continue
                try:
                    outcome = self._do(step, routed.slot, ends)
                except (NotSent, Refused, Unanswered) as error:
                    failure = error
        except StopIteration as done:
            return done.value

    def _run_to_completion(self, command: RoutedCommand) -> Any:
        return self._run(command, time.monotonic() + self._deciding)

    def _do(self, step: Step, slot: int, ends: float) -> Any:
        """Carry out a step; returns the reply if it is to send something."""
        left = max(0.0005, ends - time.monotonic())
        match step:
            case Send(address, command, asking):
                reply = self._pool.call(address, command, left, asking=asking)
                if not self._eviction_checked:
                    self._check_eviction(address)
                return reply
            case Discover():
                self._discover(slot, ends)
            case Drop(address):
                self._pool.drop(address)
            case Delay(seconds):
                time.sleep(min(seconds, left))
        return None

    def _check_eviction(self, address: Address) -> None:
        """Check once whether the server may evict limits; if it does not answer, that is no failure."""
        self._eviction_checked = True
        with suppress(NotSent, Refused, Unanswered):
            info = self._pool.call(address, (b"INFO",), EVICTION_CHECK_S)
            Evictions(self._log).note(address, info)

    def _discover(self, slot: int, ends: float) -> None:
        """Find the responsible server, or raise why not; concurrent threads share one search."""
        while self._pool.discovering.locked():  # `with` would wait without a time limit.
            if self._topology.address(slot) is not None:
                return
            if time.monotonic() >= ends:
                raise NotSent(DISCOVERY_TIMED_OUT)
            time.sleep(LOOK_AGAIN_S)
        with self._pool.discovering:
            if self._topology.address(slot) is not None:
                return
            search = ParallelDiscovery(self._topology.discovery())
            answers: SimpleQueue[tuple[Question, Any]] = SimpleQueue()
            while not search.ended:
                left = ends - time.monotonic()
                if left <= 0:
                    raise NotSent(DISCOVERY_TIMED_OUT)
                for question in search.due():
                    self._ask_in_thread(question, min(self.options.connect_timeout, left), answers)
                try:
                    search.process_reply(*answers.get(timeout=min(PATIENCE_S, left)))
                except Empty:
                    search.ask_another()
            search.require_found(self._topology, slot)

    def _ask_in_thread(
        self, question: Question, seconds: float, answers: SimpleQueue[tuple[Question, Any]]
    ) -> None:
        """Ask a question of a discovery in a separate thread, so that a silent server delays no caller.

        Not a `threading.Thread`: its `start` waits for the thread with a lock that an interrupt would leave locked.
        """
        address, command = question
        sentinel = isinstance(self._topology, Sentinel) and command[0] == b"SENTINEL"

        def ask() -> None:
            reply: Any
            try:
                reply = self._pool.call(address, command, seconds, sentinel=sentinel)
            except (NotSent, Refused, Unanswered) as error:
                reply = error
            except Exception as error:  # noqa: BLE001 - the search continues without it
                reply = NotSent(f"{shown(address)} could not be asked: {error!r}")
            answers.put((question, reply))

        try:
            start_new_thread(ask, ())
        except RuntimeError:  # No more threads can be started.
            ask()
