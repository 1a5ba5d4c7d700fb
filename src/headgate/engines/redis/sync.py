"""RedisEngine: the blocking shell."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...algorithms import CalendarWindow
from ...charge import ONE, Charge, Request
from ...decision import Decision
from ...errors import EngineError
from ..base import require_page
from .advice import warn_about_eviction
from .carry import Discover, Drop, Errand, Pause, Send, Step, carry
from .connection import Pool
from .failures import (
    NotSent,
    Refused,
    Unanswered,
    no_answer,
    refused,
    timed_out,
    unanswered,
)
from .operations import Scan
from .shell import Shell
from .spread import Look, Undo, decide_spread, groups_of
from .topology import Cluster, Sentinel

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from ...algorithms import Limit
    from ...clock import Clock
    from ..base import Hit, Page, Usage
    from .codec import Plain
    from .operations import Operations
    from .options import Address, Options


ADVICE_S = 0.25


class RedisEngine(Shell):
    """Keeps states in Redis or Valkey, for threads and plain functions."""

    blocking = True

    def __init__(
        self,
        url: str | Options,
        *,
        clock: Clock | None = None,
        colocate: Callable[[str], str] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__(url, clock=clock, colocate=colocate, logger=logger)
        self._pool = Pool(self.options)
        self._advised = threading.Event()

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key, in one round trip."""
        operations = self._operations
        plain = operations.codec.plain_maker(limit, rule)
        is_calendar = isinstance(limit, CalendarWindow)

        def hit(key: str, cost: int) -> Decision:
            if cost is not ONE or is_calendar:
                return self.decide([Request((Charge(key, limit, cost, rule=rule),))])[0]
            return self._take(operations, plain(key))

        return hit

    def _take(self, operations: Operations, part: Plain) -> Decision:
        """Take one unit: one try, which is nearly always enough, and all else as an errand."""
        ends = time.monotonic() + self.options.deadline
        slot, form = operations.slot(part), part[2]
        words = operations.words(form)
        reply = self._try(slot, operations.packed((part,), form, words))
        if type(reply) is not list:
            reply = self._run(operations.errand(slot, [part], form, words), ends, first=reply)
        answer = operations.codec.plain_answer(reply)
        if answer is not None:
            return Decision(part[0], form.limit, answer, form.context)
        (decision,) = operations.answers([part], reply)
        assert decision is not None  # Only a calendar can be out of date.
        return decision

    def _try(self, slot: int, packed: bytes) -> Any:
        """The reply to a command that is sent once; why it was not sent, or `None` if nobody is known to send it to."""
        address = self._topology.address(slot)
        if address is None:
            return None
        try:
            reply = self._pool.call(address, packed, self.options.deadline)
        except NotSent as error:
            self._topology.forget(address)
            return error
        except (Refused, Unanswered) as error:
            self._topology.forget(address)
            told = refused if isinstance(error, Refused) else unanswered
            raise told(str(error)) from error
        if not self._advised.is_set():
            self._advise(address)
        return reply

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""
        return self._decide(requests)

    def _decide(self, requests: Sequence[Request], ends: float | None = None) -> list[Decision]:
        if self._operations.clustered:
            spread = [groups_of(request, self._operations.codec.keys.tag) for request in requests]
            if any(len(groups) > 1 for groups in spread):
                return [
                    self._decide_spread(request, groups)
                    for request, groups in zip(requests, spread, strict=True)
                ]
        decisions: dict[int, Decision] = {}
        for batch in self._operations.batches(requests):
            reply = self._run(batch.errand, ends)
            answers = self._operations.answers(batch.parts, reply)
            for place, part, decision in zip(batch.places, batch.parts, answers, strict=True):
                while decision is None:  # The store's clock is in another period than ours.
                    part = self._operations.again(part, reply[0])  # noqa: PLW2901
                    reply = self._run(self._operations.errand(batch.errand.slot, [part]), ends)
                    (decision,) = self._operations.answers([part], reply)  # noqa: PLW2901
                decisions[place] = decision
        return [decisions[place] for place in range(len(requests))]

    def settle(self, token: str, actual: int) -> bool:
        """Correct a reservation to what was really used, once."""
        replies = [self._run(errand) for errand in self._operations.settle(token, actual)]
        return all(reply == [1] for reply in replies)

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line, if it is the last."""
        errand = self._operations.leave_line(decision)
        if errand is not None:
            self._run(errand)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold on to slots for another while."""
        held: bool = self._run(self._operations.slots(key, limit, token, rule, renew=True)) == [1]
        return held

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Let go of slots."""
        self._run(self._operations.slots(key, limit, token, rule, renew=False))

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and what taking one unit would be answered."""
        now_us = None
        while True:
            reply = self._run(self._operations.usage(key, limit, rule, now_us))
            usage = self._operations.read_usage(reply, key)
            if usage is not None:
                return usage
            now_us = reply[0]

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        self._run(self._operations.reset(key, limit, rule))

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, by SCAN: some may come twice, and none that stays is missed."""
        require_page(prefix, cursor, limit)
        nodes = self._nodes()
        listing = self._operations.listing(prefix, cursor, limit, len(nodes))
        outcome: Any = None
        try:
            while True:
                match listing.send(outcome):
                    case Scan(node, command):
                        outcome = self._ask(nodes[node], command)
                    case errand:
                        outcome = self._run(errand)
        except StopIteration as done:
            page: Page = done.value
            return page

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _decide_spread(self, request: Request, groups: list[Request]) -> Decision:
        """Run the steps by one deadline; an interrupt leaves nothing taken behind."""
        if len(groups) == 1:
            return self.decide([request])[0]
        ends = time.monotonic() + self.options.deadline
        steps = decide_spread(request, groups)
        taken: list[str] = []
        outcome: Any = None
        failure: EngineError | None = None
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(outcome)
                outcome = failure = None
                try:
                    outcome = self._spread_step(step, ends)
                except EngineError as error:
                    failure = error
                if isinstance(step, Request) and outcome and outcome.token is not None:
                    taken.append(outcome.token)
        except StopIteration as done:
            decision: Decision = done.value
            return decision
        except EngineError:  # The steps have given back what was taken.
            raise
        except BaseException:
            self._undo(taken, ends)
            raise

    def _spread_step(self, step: Look | Request | Undo, ends: float) -> Any:
        match step:
            case Undo(token):
                return self._undo([token], ends)
            case Look(request):
                return self._look(request, ends)
            case _:
                return self._decide([step], ends)[0]

    def _undo(self, tokens: list[str], ends: float) -> None:
        """Give back what can be, for half a deadline more; there is nobody left to tell about the rest."""
        until = ends + self.options.deadline / 2
        for errand in [one for token in tokens for one in self._operations.settle(token, 0)]:
            with suppress(EngineError):
                self._run(errand, until)

    def _look(self, request: Request, ends: float) -> Decision:
        """What a request within one slot would be answered."""
        now_us = None
        while True:
            part = self._operations.codec.part(request, now_us, look=True)
            reply = self._run(self._operations.errand(self._operations.slot(part), [part]), ends)
            (decision,) = self._operations.answers([part], reply)
            if decision is not None:
                return decision
            now_us = reply[0]

    def _nodes(self) -> list[Address]:
        if self._topology.address(0) is None:
            try:
                self._discover(0, time.monotonic() + self.options.deadline)
            except (NotSent, Refused) as error:
                raise no_answer(error) from error
        if isinstance(self._topology, Cluster):
            return self._topology.masters
        address = self._topology.address(0)
        return [] if address is None else [address]

    def _ask(self, address: Address, command: tuple[Any, ...]) -> Any:
        try:
            reply = self._pool.call(address, command, self.options.deadline)
        except (NotSent, Refused, Unanswered) as error:
            raise no_answer(error) from error
        if isinstance(reply, Exception):
            raise refused(str(reply))
        return reply

    def _run(self, errand: Errand, ends: float | None = None, first: Any = None) -> Any:
        """Carry an errand out within the deadline, or by the time that a caller of many has left.

        `first` is the reply to a first attempt if there was one, or why nothing was sent.
        """
        ends = time.monotonic() + self.options.deadline if ends is None else ends
        journey = carry(errand, self._topology, self._dialect)
        outcome: Any = None
        failure: Exception | None = None
        trouble: Exception | None = None
        if isinstance(first, NotSent):
            trouble, first = first, None
        try:
            while True:
                step = journey.throw(failure) if failure else journey.send(outcome)
                trouble = failure or getattr(step, "reason", None) or trouble
                outcome = failure = None
                if time.monotonic() >= ends:
                    raise timed_out(self.options.deadline, trouble) from trouble
                if first is not None and isinstance(step, Send):
                    outcome, first = first, None
                    continue
                try:
                    outcome = self._do(step, errand.slot, ends)
                except (NotSent, Refused, Unanswered) as error:
                    failure = error
        except StopIteration as done:
            return done.value

    def _do(self, step: Step, slot: int, ends: float) -> Any:
        """Do what a journey asks for; the reply, if it is to send something."""
        left = max(0.0005, ends - time.monotonic())
        match step:
            case Send(address, command, asking):
                reply = self._pool.call(address, command, left, asking=asking)
                if not self._advised.is_set():
                    self._advise(address)
                return reply
            case Discover():
                self._discover(slot, ends)
            case Drop(address):
                self._pool.drop(address)
            case Pause(seconds):
                time.sleep(min(seconds, left))
        return None

    def _advise(self, address: Address) -> None:
        """Look once whether the server may forget limits; not being told is no failure."""
        self._advised.set()
        with suppress(NotSent, Refused, Unanswered):
            info = self._pool.call(address, (b"INFO", b"memory"), ADVICE_S)
            warn_about_eviction(info, self._log)

    def _discover(self, slot: int, ends: float) -> None:
        """Find out who is responsible, or raise why not; threads that want to know at the same time ask once."""
        with self._pool.discovering:
            if self._topology.address(slot) is not None:
                return
            discovery = self._topology.discovery()
            sentinels = isinstance(self._topology, Sentinel)
            outcome: Any = None
            try:
                while True:
                    address, command = discovery.send(outcome)
                    seconds = min(self.options.connect_timeout, ends - time.monotonic())
                    try:
                        outcome = self._pool.call(
                            address, command, max(0.001, seconds),
                            sentinel=sentinels and command[0] == b"SENTINEL",
                        )  # fmt: skip
                    except (NotSent, Refused, Unanswered) as error:
                        outcome = error
            except StopIteration as done:
                self._require_found(slot, done.value)
