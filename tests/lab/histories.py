"""Histories made on a clock of their own: many callers, answers that come late or not at all, and one exact limiter.

Every call begins, is carried out, and ends, at moments drawn at random. Calls are carried out one after the other by
the real algorithms, so a history made here is one that an exact engine could have left behind; a checker that finds
fault with it is wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.lab.history import Fault, History, HistoryHeader, Operation
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge

if TYPE_CHECKING:
    from headgate import Concurrency, Limit
    from headgate.lab.verdict import HistoryVerdict

START_US = 7_000_000_000
"""When histories begin, on the clock of the machine."""
EPOCH_US = 1_800_000_000_000_000
"""And what to add to that for the time of day."""


class Call(NamedTuple):
    """One call as it will go: begun, carried out (or not), ended."""

    at: int
    t0: int
    t1: int
    cost: int
    proc: int
    key: str = "key"
    rule: str = "api"
    lost: bool = False
    """Whether its answer never comes."""
    done: bool = True
    f: str = "check"
    token: str | None = None


@dataclass
class Shape:
    """How busy a history is, relative to its limit."""

    seed: int
    callers: int = 4
    calls: int = 40
    pace_us: int = 1_000
    """How long a caller pauses, and a call takes, on the whole."""
    slow: int = 4
    lost: float = 0.0
    most_cost: int = 1
    keys: int = 1
    receipts: bool = True
    verbs: tuple[str, ...] = ("check",)


@dataclass
class Book:
    """A history under construction."""

    limit: Limit
    receipts: bool = True
    engine: str = "redis"
    mode: str = "exact"
    limits: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def note(self, call: Call, outcome: str, answer: Any = None, **fields: Any) -> None:
        """Write what a caller was told."""
        given: dict[str, Any] = {}
        if answer is not None and outcome in ("allow", "deny") and self.receipts:
            given = {
                "remaining": answer[1],
                "retry_after_us": answer[2],
                "reset_after_us": answer[3],
            }
        if not self.receipts or outcome == "info":
            fields.pop("ver", None)
            fields.pop("now_us", None)
        self.operations.append(
            Operation(
                f=call.f, t0=call.t0, t1=call.t1, type=outcome, key=call.key, rule=call.rule,
                cost=call.cost, proc=call.proc, token=call.token, line=len(self.operations) + 2,
                **{**given, **fields},
            )
        )  # fmt: skip

    def history(self) -> History:
        """What a file would hold."""
        limits = self.limits or {"api": self.limit}
        header = HistoryHeader(
            self.engine, self.mode, limits, self.parameters, epoch_us=EPOCH_US, **self.more
        )
        return History(header, list(self.operations), list(self.faults))

    def verdict(self) -> HistoryVerdict:
        """What the checker says."""
        return judge(Scene(self.history()))


def calls_of(shape: Shape) -> list[Call]:
    """All calls, in the order in which they are carried out."""
    rng = random.Random(shape.seed)
    calls = []
    for proc in range(shape.callers):
        at = START_US + rng.randrange(shape.pace_us + 1)
        for number in range(shape.calls // shape.callers):
            at += rng.choice([0, 1, rng.randrange(shape.pace_us + 1), shape.pace_us])
            slow = rng.choice([1, 1, 1, shape.slow])
            sent = rng.randrange(slow * shape.pace_us // 4 + 1)
            back = rng.randrange(slow * shape.pace_us // 4 + 1)
            lost = rng.random() < shape.lost
            cost = rng.randint(1, shape.most_cost)
            key = f"key {rng.randrange(shape.keys)}"
            verb = rng.choice(shape.verbs)
            calls.append(
                Call(
                    at + sent, at, at + sent + back, cost, proc, key, lost=lost,
                    done=not lost or rng.random() < 0.5, f=verb, token=f"{proc}.{number}",
                )
            )  # fmt: skip
            at += sent + back
    calls.sort(key=lambda call: call.at)
    return calls


def exact(limit: Limit, shape: Shape) -> Book:
    """A history of an engine that counts exactly."""
    book = Book(limit, receipts=shape.receipts)
    states: dict[str, Any] = {}
    versions: dict[str, int] = {}
    for call in calls_of(shape):
        now_us = call.at + EPOCH_US
        answer = None
        version = 0
        if call.done:
            state = states.get(call.key)
            if call.f == "peek":
                answer = limit.peek(state, now_us, call.cost)
            else:
                verb = limit.force if call.f == "force" else limit.take
                states[call.key], answer = verb(state, now_us, call.cost)
            version = versions[call.key] = versions.get(call.key, 0) + 1
        if call.lost:
            book.note(call, "info")
        else:
            assert answer is not None
            book.note(call, "allow" if answer[0] else "deny", answer, ver=version, now_us=now_us)
    return book


def held(limit: Concurrency, shape: Shape) -> Book:
    """A history of slots: each is acquired, perhaps renewed, and let go or left to expire."""
    book = Book(limit, receipts=False)
    states: dict[str, Any] = {}
    rng = random.Random(shape.seed + 1)
    acts = []
    for call in calls_of(shape):
        acts.append((call.at, call._replace(f="acquire")))
        at, last = call.t1, rng.choice(["release", "release", "release", ""])
        for verb in [*rng.choice([(), (), ("renew",)]), last]:
            if verb:
                begin = at + rng.randrange(2 * shape.pace_us + 1)
                done = begin + rng.randrange(shape.pace_us + 1)
                at = done + rng.randrange(shape.pace_us + 1)
                lost = rng.random() < shape.lost
                later = call._replace(at=done, t0=begin, t1=at, f=verb, lost=lost)
                acts.append((done, later._replace(done=not lost or rng.random() < 0.5)))
    acts.sort(key=lambda act: act[0])
    refused: set[str | None] = set()
    for at, call in acts:
        now_us = at + EPOCH_US
        assert call.token is not None
        if call.f != "acquire" and call.token in refused:
            continue
        outcome = "allow"
        state = states.get(call.key)
        if call.done and call.f == "acquire":
            state, answer = limit.hold(state, now_us, call.cost, call.token)
            outcome = "allow" if answer[0] else "deny"
        elif call.done and call.f == "renew":
            state, kept = limit.renew(state, now_us, call.token)
            outcome = "allow" if kept else "deny"
        elif call.done:
            state = limit.release(state, now_us, call.token)
        states[call.key] = state
        if call.f == "acquire" and (call.lost or outcome == "deny"):
            refused.add(call.token)
        book.note(call, "info" if call.lost else outcome)
    return book
