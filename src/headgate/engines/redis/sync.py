"""RedisEngine: the blocking shell."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...charge import Charge, Request
from ...errors import EngineError
from ..base import Page, Usage
from .advice import warn_about_eviction
from .carry import Discover, Drop, Errand, Pause, Send, carry
from .connection import Pool
from .failures import NotSent, Unanswered, refused, timed_out
from .shell import Shell
from .spread import Look, Undo, decide_spread, groups_of
from .topology import Cluster, Sentinel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...algorithms import Limit
    from ...clock import Clock
    from ...decision import Decision
    from ..base import Entry, Hit
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
    ) -> None:
        super().__init__(url, clock=clock, colocate=colocate)
        self._pool = Pool(self.options)
        self._discovering = threading.Lock()
        self._advised = threading.Event()

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key, in one round trip."""

        def hit(key: str, cost: int) -> Decision:
            return self.decide([Request((Charge(key, limit, cost, rule=rule),))])[0]

        return hit

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide each request, all or nothing."""
        if self._operations.clustered:
            spread = [groups_of(request, self._operations.codec.keys.tag) for request in requests]
            if any(len(groups) > 1 for groups in spread):
                return [
                    self._decide_spread(request, groups)
                    for request, groups in zip(requests, spread, strict=True)
                ]
        decisions: dict[int, Decision] = {}
        for batch in self._operations.batches(requests):
            reply = self._run(batch.errand)
            answers = self._operations.answers(batch.parts, reply)
            for place, part, decision in zip(batch.places, batch.parts, answers, strict=True):
                while decision is None:  # The store's clock is in another period than ours.
                    part = self._operations.again(part, reply[0])  # noqa: PLW2901
                    reply = self._run(self._operations.errand(batch.errand.slot, [part]))
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
            usage = self._operations.read_usage(reply)
            if usage is not None:
                return usage
            now_us = reply[0]

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        self._run(self._operations.reset(key, limit, rule))

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """Keys in use, by SCAN: some may come twice, and none that stays is missed."""
        nodes = self._nodes()
        number, _, at = (cursor or "0:0").partition(":")
        entries: list[Entry] = []
        index, position = int(number), at.encode()
        while index < len(nodes) and len(entries) < limit:
            found = self._ask(nodes[index], self._operations.scan(prefix, position, limit))
            position, names = found
            names = self._operations.matching(names, prefix)
            entries += [entry for name in names if (entry := self._entry(name)) is not None]
            if position == b"0":
                index += 1
        return Page(entries, f"{index}:{position.decode()}" if index < len(nodes) else "")

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _decide_spread(self, request: Request, groups: list[Request]) -> Decision:
        if len(groups) == 1:
            return self.decide([request])[0]
        steps = decide_spread(request, groups)
        outcome: Any = None
        failure: EngineError | None = None
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(outcome)
                failure = None
                try:
                    match step:
                        case Undo(token):
                            outcome = self.settle(token, 0)
                        case Look(part):
                            outcome = self._look(part)
                        case _:
                            (outcome,) = self.decide([step])
                except EngineError as error:
                    failure = error
        except StopIteration as done:
            decision: Decision = done.value
            return decision

    def _look(self, request: Request) -> Decision:
        """What a request within one slot would be answered."""
        now_us = None
        while True:
            part = self._operations.codec.part(request, now_us, look=True)
            reply = self._run(self._operations.errand(self._operations.slot(part), [part]))
            (decision,) = self._operations.answers([part], reply)
            if decision is not None:
                return decision
            now_us = reply[0]

    def _entry(self, name: bytes) -> Entry | None:
        described = self._operations.described(name)
        if described is None:
            return None
        _, limit, _ = described
        stored = self._run(self._operations.stored_limit(name, limit.name))
        reply = self._run(self._operations.usage_of(name, limit))
        return self._operations.entry(name, stored, reply)

    def _nodes(self) -> list[Address]:
        if self._topology.address(0) is None:
            self._discover(0, time.monotonic() + self.options.deadline)
        if isinstance(self._topology, Cluster):
            return self._topology.masters
        address = self._topology.address(0)
        return [] if address is None else [address]

    def _ask(self, address: Address, command: tuple[Any, ...]) -> Any:
        try:
            reply = self._pool.call(address, command, self.options.deadline)
        except (NotSent, Unanswered) as error:
            raise EngineError(f"redis did not answer: {error}", transient=True) from error
        if isinstance(reply, Exception):
            raise refused(str(reply))
        return reply

    def _run(self, errand: Errand) -> Any:
        """Carry an errand out within the deadline."""
        ends = time.monotonic() + self.options.deadline
        journey = carry(errand, self._topology)
        outcome: Any = None
        failure: Exception | None = None
        trouble: Exception | None = None
        try:
            while True:
                step = journey.throw(failure) if failure else journey.send(outcome)
                trouble = failure or trouble
                outcome = failure = None
                left = ends - time.monotonic()
                if left <= 0:
                    raise timed_out(self.options.deadline, trouble) from trouble
                match step:
                    case Send(address, command, asking):
                        try:
                            outcome = self._pool.call(address, command, left, asking=asking)
                            if not self._advised.is_set():
                                self._advise(address)
                        except (NotSent, Unanswered) as error:
                            failure = error
                    case Discover():
                        self._discover(errand.slot, ends)
                    case Drop(address):
                        self._pool.drop(address)
                    case Pause(seconds):
                        time.sleep(min(seconds, left))
        except StopIteration as done:
            return done.value

    def _advise(self, address: Address) -> None:
        """Look once whether the server may forget limits; not being told is no failure."""
        self._advised.set()
        with suppress(NotSent, Unanswered):
            warn_about_eviction(self._pool.call(address, (b"INFO", b"memory"), ADVICE_S))

    def _discover(self, slot: int, ends: float) -> None:
        """Find out who is responsible; threads that want to know at the same time ask once."""
        with self._discovering:
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
                    except (NotSent, Unanswered) as error:
                        outcome = error
            except StopIteration:
                return
