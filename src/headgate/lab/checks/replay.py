"""Replay: run each key's decisions through the algorithm, in order of their versions. Every answer must match.

Receipts provide the order and the time, so no search is needed. Where a version is missing, it is unknown what was
taken, if anything: from then on two states are kept, one without what is missing (`low`) and one with all of it, taken
as late as possible (`high`). Answers must lie between the two, until both are equal again.

What changes a state without a version (settling, releasing) ends the replay of a key; the interval checks continue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..scene import OF_POLICY
from ..spans import Times
from .finding import Finding
from .receipts import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...algorithms import Answer, Limit, State
    from ..history import Operation
    from ..scene import Scene, Trail
    from .receipts import Era

FIELDS: Final = ("remaining", "retry_after_us", "reset_after_us")
TAKEN: Final = frozenset(("check", "reserve", "lease"))
UNNUMBERED: Final = frozenset(("settle", "reset", "unlease", "renew", "release"))


class Unknown:
    """The operations of a key with unknown outcome that have begun so far."""

    def __init__(self, scene: Scene, trail: Trail) -> None:
        self._all = sorted(
            (one.t0, scene.latest(one), max(0, one.cost))
            for one in trail.operations
            if (one.type == "info" or (one.source in OF_POLICY and scene.policy != "raise"))
            and one.f in NUMBERED
        )
        self._waiting = self._all[::-1]
        self._begun: Counter[int] = Counter()
        self._missed = 0

    def begin(self, until: int) -> list[int]:
        """Begin those that were sent by then; returns their costs."""
        costs = []
        while self._waiting and self._waiting[-1][0] <= until:
            costs.append(self._waiting.pop()[2])
        self._begun.update(costs)
        return costs

    def under_way(self, since: int) -> list[int]:
        """The costs of those that have begun, and may have been carried out since then."""
        begun = self._all[: len(self._all) - len(self._waiting)]
        return [cost for _, latest, cost in begun if latest >= since]

    def largest(self, many: int) -> list[int] | None:
        """The `many` largest of their costs; `None` if more are missing by now than have begun.

        It is not known which of them it was, so any of them may also be the next one.
        """
        self._missed += many
        if self._missed > sum(self._begun.values()):
            return None
        costs: list[int] = []
        for cost in sorted(self._begun, reverse=True):
            costs += [cost] * min(self._begun[cost], many - len(costs))
        return costs

    def sum_until(self, until: int) -> int:
        """The cost of all that were sent by then."""
        return sum(cost for t0, _, cost in self._all if t0 <= until)


@dataclass(slots=True)
class Replay:
    """One key, replayed."""

    scene: Scene
    trail: Trail
    replayed: int = 0
    unjudged: int = 0
    findings: list[Finding] = field(default_factory=list)
    low: State = None
    high: State = None
    exact: bool = True
    given_up: bool = False
    since: int | None = None
    """When the last decision was made at the earliest, on the history's clock."""
    losing: bool = False
    steps: int = 0
    """How often the clock stepped. If it did, unknown operations may have moved a key's time ahead, so more is not
    always worse."""
    losses: Times = field(default_factory=lambda: Times(()))

    def run(self, eras: list[Era]) -> None:
        """Replay every era, and compare the store's own count where nothing was in flight."""
        trail = self.trail
        ledgers = sorted(
            (one for one in trail.operations if one.f == "ledger" and one.type == "allow"),
            key=lambda one: one.t0,
        )
        unknown = Unknown(self.scene, trail)
        self.losses = losses_of(self.scene)
        self.steps = sum(fault.fault == "clock_step" for fault in self.scene.faults)
        hopeless = self.given_up = not self._can_begin(eras)
        for number, era in enumerate(eras):
            version = era.first
            for one in era.operations:
                assert one.ver is not None
                assert one.now_us is not None
                while ledgers and ledgers[0].t1 < one.t0:
                    self._look(ledgers.pop(0), unknown)
                self._may_be_cut(trail.limit_of(one), one.now_us, one.t1)
                self._survive(one, unknown)
                if one.ver == 1 and number:  # A store that has lost everything.
                    self.low = self.high = None
                    self.exact, self.given_up = True, hopeless
                elif one.ver > version:
                    self._skip(one.ver - version, one, unknown)
                version = one.ver + 1
                if self.given_up:
                    self.unjudged += 1
                else:
                    self._step(one)
        for ledger in ledgers:
            self._look(ledger, unknown)

    def _can_begin(self, eras: list[Era]) -> bool:
        scene, trail = self.scene, self.trail
        if not eras or not scene.header.fresh or trail.limit.name == "concurrency":
            return False
        moves_alone = any(one.f in UNNUMBERED and one.ver is None for one in trail.operations)
        ids = [one.id for one in trail.operations if one.id is not None and one.ver is not None]
        return not moves_alone and len(ids) == len(set(ids))

    def _survive(self, one: Operation, unknown: Unknown) -> None:
        """A fault may lose all decisions made during it, or any of them; unknown operations may fill the gap."""
        assert one.now_us is not None
        wide = self.scene.header.epsilon_us
        at = one.now_us - self.scene.header.epoch_us
        # A clock that steps says nothing about when a decision was made, except that its caller waited for it.
        earliest, latest = (one.t0, one.t1) if self.steps else (at - wide, at + wide)
        since, self.since = self.since, earliest
        was_losing, self.losing = self.losing, False
        if since is None or not self.losses.meet(since, latest):
            return
        self.losing = True
        limit = self.trail.limit_of(one)
        if limit.counts_denials or self.steps:
            self.given_up = True
            return
        self.low, self.exact = None, False
        hidden = unknown.begin(latest)
        if not was_losing:
            hidden = unknown.under_way(since)
        for cost in hidden:
            self.high, _ = limit.force(self.high, one.now_us, cost)

    def _skip(self, missing: int, following: Operation, unknown: Unknown) -> None:
        """Take what is missing, as late as possible: right before the operation that follows."""
        limit, scene = self.trail.limit_of(following), self.scene
        assert following.now_us is not None
        unknown.begin(following.now_us - scene.header.epoch_us + scene.header.epsilon_us)
        costs = unknown.largest(missing)
        if costs is None or limit.counts_denials or self.steps:
            self.given_up = True
            return
        self.exact = False
        for cost in costs:
            self.high, _ = limit.force(self.high, following.now_us, cost)

    def _step(self, one: Operation) -> None:
        limit = self.trail.limit_of(one)
        if self.exact:
            self._step_exactly(one, limit)
        else:
            self._step_between(one, limit)

    def _may_be_cut(self, limit: Limit, now_us: int, at: int) -> None:
        """Allow for a state that is too far ahead of the clock: a store that makes room may have cut it earlier."""
        if not self.steps or limit.seen(self.low, now_us)[0] is self.low:
            return
        self.exact = False
        if self.steps > 1 or self.since is None:
            self.low = None
        else:  # After the last decision, but not before it.
            passed_us = at - self.since + 2 * self.scene.header.epsilon_us
            self.low, _ = limit.seen(self.low, now_us - passed_us)

    def _step_exactly(self, one: Operation, limit: Limit) -> None:
        assert one.now_us is not None
        own = one.type == "allow" if one.own is None else one.own
        if one.f == "acquire" or (own and one.retry_after_us):  # It waited, which books the future.
            self.given_up, self.unjudged = True, self.unjudged + 1
            return
        after, answer = _asked(one, limit, self.low, own=own)
        self.replayed += 1
        recorded = _recorded(one, own=own)
        expected = _comparable(one, answer)
        if self.scene.header.mode == "leased" and (one.retry_after_us or 0) > answer[2] > 0:
            # A node that waits for its turn reports that time, which is later than when there is room.
            recorded["retry_after_us"] = answer[2]
        if recorded != expected:
            self.findings.append(_differs(one, recorded, expected))
            if own != answer[0]:  # Continue from the clients' view.
                after = (
                    limit.force(self.low, one.now_us, one.cost)[0]
                    if _takes(one, own=own)
                    else self.low
                )
        self.low = self.high = after

    def _step_between(self, one: Operation, limit: Limit) -> None:
        assert one.now_us is not None
        now_us, own = one.now_us, one.type == "allow" if one.own is None else one.own
        if one.f == "acquire" or (own and one.retry_after_us):
            self.given_up, self.unjudged = True, self.unjudged + 1
            return
        self.replayed += 1
        if one.f != "force":
            best, worst = (
                limit.peek(self.low, now_us, one.cost),
                limit.peek(self.high, now_us, one.cost),
            )
            if (own and not best[0]) or (not own and worst[0]):
                words = "allowed" if own else "denied"
                self.findings.append(
                    _finding(
                        one,
                        f"{words}, but the algorithm would not have, whatever the unknown calls did",
                    )
                )
        if _takes(one, own=own):
            self.low, _ = limit.force(self.low, now_us, one.cost)
            self.high, _ = limit.force(self.high, now_us, one.cost)
        self.exact = _same(limit, self.low, self.high)

    def _look(self, ledger: Operation, unknown: Unknown) -> None:
        self._compare(ledger, unknown)
        if self.steps:
            # Reading cuts a state that is ahead of the clock, as a decision does, but has no time.
            self.low, self.exact = None, False

    def _compare(self, ledger: Operation, unknown: Unknown) -> None:
        """The store's own count, read while nothing was in flight, must match what was admitted."""
        scene = self.scene
        wide = scene.header.epsilon_us
        if self.given_up or ledger.used is None or busy(self.trail, ledger):
            return
        limit = self.trail.limit_of(ledger)
        begin_us = ledger.t0 + scene.header.epoch_us - wide
        end_us = ledger.t1 + scene.header.epoch_us + wide
        if ledger.now_us is not None:
            begin_us = end_us = ledger.now_us
        self._may_be_cut(limit, begin_us, ledger.t1)
        since = ledger.t0 - wide if self.since is None else self.since
        low = None if self.losses.meet(since, ledger.t1 + wide) else self.low
        least = limit.used(low, end_us)
        most = limit.used(self.high, begin_us)
        most += unknown.sum_until(ledger.t1)
        if not least <= ledger.used <= most:
            self.findings.append(ledger_finding(ledger, least, most))


def losses_of(scene: Scene) -> Times:
    """When a fault may have made the store lose decisions."""
    faults = [one for one in scene.faults if one.fault in scene.promise.loses]
    return Times((one.t0, scene.heal(one)) for one in faults)


def busy(trail: Trail, ledger: Operation) -> bool:
    """Whether something was in flight while the store was read."""
    return any(
        one is not ledger and one.t0 <= ledger.t1 and one.t1 >= ledger.t0
        for one in trail.operations
    )


def ledger_finding(ledger: Operation, least: int, most: int) -> Finding:
    """The store's count differs from what was admitted."""
    given = f"{least}" if least == most else f"{least} to {most}"
    return Finding(
        "ledger",
        f"the store counts {ledger.used}, but {given} were taken",
        ledger.rule,
        ledger.key,
        ledger.line,
        ledger.t0,
        max(least - (ledger.used or 0), (ledger.used or 0) - most),
    )


def replays(scene: Scene, by_trail: list[tuple[Trail, list[Era]]]) -> Iterator[Replay]:
    """Every key that has receipts, replayed."""
    for trail, eras in by_trail:
        if eras:
            replay = Replay(scene, trail)
            replay.run(eras)
            yield replay


def _asked(one: Operation, limit: Limit, state: State, *, own: bool) -> tuple[State, Answer]:
    """The algorithm's answer to an operation, and the state after it."""
    assert one.now_us is not None
    if one.f == "force":
        return limit.force(state, one.now_us, one.cost)
    if one.f == "peek" or (one.type == "deny" and own):  # Denied because of another charge.
        # A state that is too far ahead of now is cut, even by a peek.
        return limit.seen(state, one.now_us)[0], limit.peek(state, one.now_us, one.cost)
    return limit.take(state, one.now_us, one.cost)


def _takes(one: Operation, *, own: bool) -> bool:
    return one.cost > 0 and (one.f == "force" or (one.f in TAKEN and one.type == "allow" and own))


def _recorded(one: Operation, *, own: bool) -> dict[str, object]:
    recorded = {name: getattr(one, name) for name in FIELDS if getattr(one, name) is not None}
    return {"allowed": own, **recorded}


def _comparable(one: Operation, answer: Answer) -> dict[str, object]:
    """The answer, limited to what the history recorded of the client's answer."""
    recorded = {
        name: value
        for name, value in zip(FIELDS, answer[1:4], strict=True)
        if getattr(one, name) is not None
    }
    return {"allowed": answer[0], **recorded}


def _differs(one: Operation, recorded: dict[str, object], expected: dict[str, object]) -> Finding:
    parts = [
        f"{name} was {recorded[name]}, but should be {expected[name]}"
        for name in recorded
        if recorded[name] != expected[name]
    ]
    return _finding(one, "; ".join(parts))


def _finding(one: Operation, message: str) -> Finding:
    return Finding("replay", f"version {one.ver}: {message}", one.rule, one.key, one.line, one.t0)


def _same(limit: Limit, low: State, high: State) -> bool:
    if low is None or high is None:
        return low is high
    return limit.encode(low) == limit.encode(high)
