"""The scene: a history sorted by key, prepared for the checks. Pure.

There are two ledgers. **Effective** is what clients got, from anyone: this is what a limit is about. **Consumed** is
what the engine counted: this is what receipts and the store's own numbers show.

For interval checks, an operation is *certainly* inside a span if it began and ended there, and *possibly* if it
overlaps it. An operation of unknown outcome (`info`) may have been carried out as late as a fault was healed: a stopped
server processes what it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import Concurrency
from .limits import hold_us, memory_us, most_at_once
from .promises import AWAY, NOTHING, ONE_BY_ONE, ModePromise, PromiseCase, promise_of
from .spans import Extra, Span, Sums, Times

if TYPE_CHECKING:
    from ..algorithms import Limit
    from .history import Fault, History, HistoryHeader, Operation

RECOVERY_US: Final = 1_000_000
"""How long after a fault everything must be back to normal, if the header does not say."""
CACHE_US: Final = 1_000_000
"""How long a deny cache may miss another node's reset."""
NEVER_BEFORE: Final = -(2**63)
NEVER_AFTER: Final = 2**63
TAKES: Final = frozenset(("check", "reserve"))
CHARGES: Final = frozenset((*TAKES, "force"))
OF_POLICY: Final = frozenset(("fallback", "open", "closed"))
"""Sources of answers when the store does not answer."""
ASKED: Final = frozenset(("check", "reserve", "acquire"))


@dataclass(slots=True)
class Trail:
    """Everything that happened to one key under one rule."""

    rule: str
    key: str
    limit: Limit
    """If the rule was changed, the smallest of its limits; `levels` has what the others add, and when."""
    first: Limit
    """The limit in the header."""
    operations: list[Operation] = field(default_factory=list)
    revisions: dict[int, Limit] = field(default_factory=dict)
    levels: list[Extra] = field(default_factory=list)

    def limit_of(self, operation: Operation) -> Limit:
        """The limit that decided an operation."""
        return self.revisions.get(operation.rule_rev or 0, self.first)


class Changes:
    """The successive limits of one rule."""

    def __init__(self, first: Limit, puts: list[Operation]) -> None:
        self.first = first
        self.puts = sorted((put for put in puts if put.type == "allow"), key=lambda put: put.t0)
        self.revisions: dict[int, Limit] = {}
        for put in puts:
            assert put.limit is not None
            assert put.rule_rev is not None
            self.revisions[put.rule_rev] = put.limit

    def at(self, revision: int | None) -> Limit:
        """The limit of a revision; the header's, if that is unknown."""
        return self.revisions.get(revision or 0, self.first)

    def trail(self, rule: str, key: str, identity: str) -> Trail:
        """An empty trail for those of the limits that share a state."""
        limits = [one for one in (self.first, *self.revisions.values()) if one.identity == identity]
        known = {revision: one for revision, one in self.revisions.items() if one in limits}
        if limits[0].name == "token_bucket":  # A rate that changed is judged by the fastest.
            fastest = max(limits, key=lambda one: (one.limit, most_at_once(one)))
            return Trail(rule, key, fastest, limits[0], revisions=known)
        smallest = min(limits, key=most_at_once)
        levels = self._levels(identity, smallest) if known else []
        return Trail(rule, key, smallest, limits[0], revisions=known, levels=levels)

    def _levels(self, identity: str, smallest: Limit) -> list[Extra]:
        """What each larger limit adds to the smallest, while it may have been in force."""
        times: list[tuple[int, int, int]] = []
        begin, limit = NEVER_BEFORE, self.first
        for put in [*self.puts, None]:
            end = NEVER_AFTER if put is None else put.t1
            if limit.identity == identity:
                times.append((begin, end, most_at_once(limit)))
            if put is not None:
                assert put.limit is not None
                begin, limit = put.t0, put.limit
        levels = []
        below = most_at_once(smallest)
        for level in sorted({units for _, _, units in times if units > below}):
            joined: list[list[int]] = []
            for begin, end, units in sorted(times):
                if units < level:
                    continue
                if joined and begin <= joined[-1][1]:
                    joined[-1][1] = max(joined[-1][1], end)
                else:
                    joined.append([begin, end])
            levels += [Extra(begin, end, level - below, "rule") for begin, end in joined]
            below = level
        return levels


class Scene:
    """A history, ready to be judged."""

    def __init__(self, history: History) -> None:
        self.header: HistoryHeader = history.header
        self.faults: list[Fault] = sorted(history.faults, key=lambda one: one.t0)
        self.operations = history.operations
        self.promise: ModePromise = promise_of(self.header.engine, self.header.mode)
        self.parameters = self.header.parameters
        self.policy: str = self.parameters.get("on_error", "raise")
        self.begin = min(one.t0 for one in history.operations)
        self.end = max(one.t1 for one in history.operations)
        self.recovery_us: int = self.parameters.get("recovery_us", RECOVERY_US)
        healed = max((self.heal(fault) for fault in self.faults), default=NEVER_BEFORE)
        self.settled: int = healed + self.recovery_us
        """From when on everything must be as it was before the faults."""
        self._away: dict[str | None, Times] = {}
        self.trails = self._trails()

    def _trails(self) -> list[Trail]:
        found: dict[tuple[str, str, str], Trail] = {}
        puts: dict[str, list[Operation]] = {rule: [] for rule in self.header.limits}
        for one in self.operations:
            if one.f == "put_rule":
                puts[one.rule].append(one)
        changed = {rule: Changes(limit, puts[rule]) for rule, limit in self.header.limits.items()}
        for one in self.operations:
            if one.f == "put_rule":
                continue
            changes = changed[one.rule]
            identity = changes.at(one.rule_rev).identity
            trail = found.get((one.rule, one.key, identity))
            if trail is None:
                trail = found[one.rule, one.key, identity] = changes.trail(
                    one.rule, one.key, identity
                )
            trail.operations.append(one)
        for trail in found.values():
            trail.operations.sort(key=lambda one: one.t0)
        return list(found.values())

    # Time

    def heal(self, fault: Fault) -> int:
        """When a fault was over; the end of the history if it never was."""
        if fault.heal is not None:
            return fault.heal
        return self.end if fault.fault in AWAY or fault.fault == "clock_step" else fault.t1

    def latest(self, operation: Operation) -> int:
        """The latest moment at which an operation can have been carried out."""
        latest = operation.t1
        # The store is charged, or told of a release, when it is back.
        by_share = operation.source in OF_POLICY or (
            operation.f == "release" and self.policy != "raise"
        )
        if by_share:
            latest += self.recovery_us
        if operation.type == "info" or by_share:
            drain_us = self.recovery_us if by_share else self.parameters.get("drain_us", 0)
            for fault in self.faults:
                heal = self.heal(fault)
                if fault.t0 <= operation.t1 and heal >= operation.t0:
                    latest = max(latest, heal + drain_us)
        return latest

    def influence(self, fault: Fault) -> tuple[int, int]:
        """The span in which a fault can affect answers."""
        extra_us = self.recovery_us if fault.fault in AWAY else 0
        return fault.t0, self.heal(fault) + extra_us

    def may_forget(self, begin: int, end: int, *, by: int) -> bool:
        """Whether the store may have lost, by then, what was done between two moments."""
        lag_us = self._lag_us
        return any(
            fault.t0 <= by
            and begin <= self.heal(fault)
            and (lag_us is None or end >= fault.t0 - lag_us)
            for fault in self.faults
            if fault.fault in self.promise.loses
        )

    @property
    def _lag_us(self) -> int | None:
        """How long a store may take to copy what it has done to where it survives; `None` if that is unknown."""
        name = "state_file_us" if self.header.engine == "memory" else "lag_us"
        found: int | None = self.parameters.get(name)
        return found

    def is_stray(self, one: Operation) -> bool:
        """Whether a node answered without the store while nothing was broken: the store may just have been slow."""
        by_policy = one.source in OF_POLICY and one.type in ("allow", "deny")
        return by_policy and not self._away_from(one.node).meet(one.t0, one.t1)

    def _away_from(self, node: str | None) -> Times:
        """When a node may have had to answer without the store; a fault with a node affects only that node."""
        if node not in self._away:
            self._away[node] = Times(
                self.influence(one)
                for one in self.faults
                if one.fault in AWAY and (one.node is None or node is None or one.node == node)
            )
        return self._away[node]

    def excuses(self, trail: Trail) -> Times:
        """When a fault may explain a denial: also later, for a dead holder's slots and a clock that stepped back."""
        found = []
        for fault in self.faults:
            begin, end = self.influence(fault)
            if fault.fault == "clock_step":
                # Units taken ahead of time count for their usual time, plus the size of the step.
                end = self.held_until(trail, fault) + memory_us(trail.limit)
            found.append((begin, end))
        return Times(found)

    def held_until(self, trail: Trail, step: Fault) -> int:
        """Until when a key's time may stand still after a clock step was corrected.

        A state that is too far ahead is cut when it is next read, not before.
        """
        return self._first_look(trail, step) + hold_us(trail.limit)

    def _first_look(self, trail: Trail, step: Fault) -> int:
        """When a key was first read after a clock step was corrected."""
        heal = self.heal(step)
        answered = (
            one
            for one in trail.operations
            if one.source == "engine" and one.type in ("allow", "deny")
        )
        return next((one.t1 for one in answered if one.t0 >= heal), heal)

    # Spans

    def certain(self, trail: Trail) -> list[Span]:
        """What clients certainly got, each in an interval widened by the difference of the clocks."""
        wide = self.header.epsilon_us
        settled = _settled(trail)
        return [
            Span(one.t0 - wide, one.t1 + wide, cost, one.line)
            for one in trail.operations
            if one.f in TAKES and one.type == "allow" and self._counts(one)
            for cost in [min(one.cost, settled.get(one.token or "", one.cost))]
            if cost > 0
        ]

    def _acknowledged(self, trail: Trail) -> list[Span]:
        """What a store that loses its latest writes may forget: units taken, and slots renewed.

        A chunk is taken as a whole, and may be spent after the store has forgotten it.
        """
        wide = self.header.epsilon_us
        if not isinstance(trail.limit, Concurrency):
            chunks = [one for one in trail.operations if one.f == "lease" and one.type == "allow"]
            return [
                *self.certain(trail),
                *(Span(one.t0 - wide, one.t1 + wide, one.cost, one.line) for one in chunks),
            ]
        costs = {one.token: one.cost for one in trail.operations if one.f == "acquire"}
        return [
            Span(one.t0 - wide, one.t1 + wide, costs.get(one.token, one.cost), one.line)
            for one in trail.operations
            if one.f in ("acquire", "renew") and one.type == "allow"
        ]

    def possible(self, trail: Trail) -> list[Span]:
        """What the engine may have counted: everything certainly or possibly taken."""
        wide = self.header.epsilon_us
        spans = []
        for one in trail.operations:
            if one.f in CHARGES and one.source in OF_POLICY:
                # The store may have carried it out, whatever the caller was told. For what was admitted without it,
                # it is charged later, and once more if the outcome of that is unknown.
                many = 3 if one.source == "fallback" and one.type == "allow" else 1
            else:  # Settling may have charged more than was reserved.
                counted = one.f in (*CHARGES, "lease", "acquire", "settle")
                many = int(counted and one.type in ("allow", "info"))
            if (cost := many * one.cost) > 0:
                spans.append(Span(one.t0 - wide, self.latest(one) + wide, cost, one.line))
        return spans

    def denials(self, trail: Trail) -> list[Operation]:
        """Denials by the engine itself, or by its cache."""
        if trail.revisions:
            return []
        excuses = self.excuses(trail)
        return [
            one
            for one in trail.operations
            if one.f in ASKED and one.type == "deny" and one.own is not True and one.cost > 0
            and one.source in ("engine", "cache")
            and not excuses.meet(one.t0, one.t1)
        ]  # fmt: skip

    def looks_from(self, denial: Operation) -> int:
        """From when on there must have been room for a denial to be false."""
        late_us = self.parameters.get("cache_us", CACHE_US) if denial.source == "cache" else 0
        return denial.t0 - self.header.epsilon_us - late_us

    def _counts(self, one: Operation) -> bool:
        """Whether the limit applies to an admission."""
        if one.source == "shadow":
            return False
        return not (one.source == "open" and self.policy == "open")

    # What may exceed the limit

    def case(self, trail: Trail, **more: Any) -> PromiseCase:
        """What bounds depend on."""
        given = self.parameters
        return PromiseCase(
            trail.limit,
            nodes=max(1, given.get("nodes", 1)),
            nodes_unknown=given.get("nodes_unknown", False),
            regions=max(1, given.get("regions", 1)),
            chunk=given.get("chunk", 0),
            unconfirmed=given.get("unconfirmed", 0),
            in_flight=given.get("in_flight", 0),
            largest=max((one.cost for one in trail.operations), default=1),
            **more,
        )

    def standing(self, trail: Trail) -> int:
        """What the mode itself adds to the limit, without any fault."""
        lag_us = self.parameters.get("lag_us")
        before = None
        if lag_us is not None and self.promise.standing.words != "0":
            sums = Sums(self.certain(trail))
            times = [one.t1 for one in trail.operations]
            before = max((sums.meeting(at - lag_us, at) for at in times), default=0)
        units = self.promise.standing.units(self.case(trail, before=before))
        lease_us = self.parameters.get("lease_us", 0)
        if trail.limit.name == "token_bucket" and any(one.f == "lease" for one in trail.operations):
            units += -(-trail.limit.limit * lease_us // trail.limit.window_us)
        return units

    def extras(self, trail: Trail) -> list[Extra]:
        """What faults and resets add for a while."""
        found = [
            Extra(one.t0, self.latest(one), self.case(trail).whole, "reset")
            for one in trail.operations
            if one.f == "reset" and one.type in ("allow", "info")
        ]
        found += [
            Extra(one.t0, self.latest(one), one.cost, "stray")
            for one in trail.operations
            if one.type == "allow" and self.is_stray(one) and one.cost > 0
        ]
        sums = Sums(self._acknowledged(trail) if self.faults else ())
        for fault in self.faults:
            begin, end = self.influence(fault)
            heal = self.heal(fault)
            lag_us = self._lag_us
            before = None if lag_us is None else sums.meeting(begin - lag_us, heal)
            case = self.case(
                trail,
                cut_off=fault.nodes or max(1, self.parameters.get("nodes", 1)),
                before=before,
                step_us=fault.step_us if fault.step_us > 0 or fault.heal is not None else 0,
                lasts_us=end - begin,
                returns_us=end - heal,
                one_by_one=fault.fault in ONE_BY_ONE,
                standing=self.standing(trail),
            )
            units = self.promise.bound(fault.fault, self.policy).units(case)
            # The state may be lost in addition.
            if fault.fault in AWAY and self.policy == "fallback":
                units += self.promise.under.get(fault.fault, NOTHING).units(case)
            if fault.fault == "clock_step":
                units = units if case.step_us else 0
                # Earlier charges may be forgotten while chunks of them are still in use.
                end = self._first_look(trail, fault) + self.parameters.get("lease_us", 0)
            if isinstance(trail.limit, Concurrency):  # Holders only notice when they renew.
                end = max(end, heal + trail.limit.ttl_us)
            if units:
                found.append(Extra(begin, end, units, fault.name or fault.fault))
        return [*found, *trail.levels]


def slots_of(scene: Scene) -> list[Trail]:
    """Trails of slots, which have separate checks."""
    return [one for one in scene.trails if isinstance(one.limit, Concurrency)]


def counted_of(scene: Scene) -> list[Trail]:
    """All other trails."""
    return [one for one in scene.trails if not isinstance(one.limit, Concurrency)]


def _settled(trail: Trail) -> dict[str, int]:
    """The actual costs of reservations, by token."""
    return {
        one.token: one.cost
        for one in trail.operations
        if one.f == "settle" and one.type in ("allow", "info") and one.token
    }
