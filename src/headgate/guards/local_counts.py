"""Local counts: what a node admits on its own while the store does not answer, and what it owes the store.

A memory engine decides, on this node's share of each limit (`shares.py`). A key starts with what it had left in the
store's last answer, if that is less than the share. What was admitted is owed: when the store is back, it is charged by
force, as far as that still counts (a window that has ended meanwhile owes nothing).

A share is spent once, however often the store goes away: what was admitted here counts until its window is over, also
after the store was charged for it.

**Slots** that are held when the store comes back are moved to it if it has room, and otherwise stay here until they are
released. **Reservations** are settled here; once their estimate has been charged to the store, only the cost beyond it
is charged there as well. Settlements and releases for the store are queued until it is back.

Memory is bounded. Keys beyond `MAX_KEYS` are also decided, but not charged later; `unmerged` counts them.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from .._fork import reset_after_fork
from ..algorithms import NEVER, Concurrency
from ..charge import ChargeSet, ReadyCharge
from ..charge_kind import ChargeKind
from ..decision import Context, Decision
from ..engines.base import combined
from ..engines.memory import MemoryEngine
from .last_answers import MAX_KEYS, MAX_LIMITS, LastAnswers
from .never import capacity
from .shares import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..algorithms import Limit
    from ..charge import Charge
    from ..clock import Clock
    from ..decision import Source
    from .shares import Fleet

MAX_BYTES: Final = 67_108_864
MAX_LATER: Final = 10_000
EXPIRE_EVERY_NS: Final = 1_000_000_000
RETRY_US: Final = 1_000_000
"""The retry delay of a denial that is only due to the small share."""

Counted: TypeAlias = "tuple[str, Limit, str | None]"
"""The identity of a count: key, limit and rule."""


class Deferred(NamedTuple):
    """A call that gives something back to the store, queued until it answers again."""

    verb: str
    """The engine verb: `settle`, `release` or `withdraw`."""
    args: tuple[object, ...]


class Reserved(NamedTuple):
    """A reservation that was made here."""

    request: ChargeSet
    places: Sequence[int]
    """Where its charges stand in what the caller has asked for: others may not be counted here."""
    ends_ns: int
    """When its time to live is over."""
    charged: bool = False
    """Whether its estimates have been charged to the store."""


class LocalCounts:
    """Decides instead of the store. Safe under threads."""

    def __init__(self, clock: Clock, fleet: Callable[[], Fleet]) -> None:
        self._clock = clock
        self._fleet_now = fleet
        self.known = LastAnswers(clock)
        self.unmerged = 0
        """How many keys did not fit: the store will never be charged for them."""
        self._lock = threading.RLock()
        self._slots = MemoryEngine(max_keys=MAX_KEYS, max_bytes=MAX_BYTES, clock=clock)
        self._held: dict[str, tuple[ChargeSet, int]] = {}
        """Slots by token, with the time when they expire unless renewed."""
        self._moving: dict[str, bool] = {}
        """Tokens of slots that the store was asked to take, and may have as well; whether they were released since."""
        self._reserved: dict[str, Reserved] = {}
        """Reservations by token."""
        self._expires_ns = 0
        """When those that nobody has settled are looked for again, if there are too many."""
        self._later: deque[Deferred] = deque(maxlen=MAX_LATER)
        self._begin()
        reset_after_fork(self)

    def _begin(self) -> None:
        self._engine = MemoryEngine(max_keys=MAX_KEYS, max_bytes=MAX_BYTES, clock=self._clock)
        """What was admitted here, and still counts."""
        self._begin_outage()

    def _begin_outage(self) -> None:
        self._fleet: Fleet | None = None
        """The nodes that share the limits, fixed at an outage's first decision: shares must not change during it."""
        self._shares: dict[Limit, Limit] = {}
        self._begun: set[tuple[str, str, str | None]] = set()
        """Started states by key, identity of the limit, and rule: variants of a limit share one."""
        self._admitted: dict[Counted, int] = {}
        self._surplus: dict[Counted, int] = {}
        self._in_flight: dict[int, ChargeSet] = {}
        """Debts that the store is being charged for, by `id`."""

    def new_empty(self) -> LocalCounts:
        """An empty copy, for another namespace."""
        return LocalCounts(self._clock, self._fleet_now)

    def after_fork(self) -> None:
        """Called in a child process: another thread may have held the lock, and the debts are the parent's to pay."""
        self._lock = threading.RLock()
        self._held.clear()
        self._moving.clear()
        self._reserved.clear()
        self._later.clear()
        self._begin()

    @property
    def has_debts(self) -> bool:
        """Whether there is anything to charge or return to the store."""
        return bool(self._admitted or self._surplus or self._in_flight or self._later)

    @property
    def fleet(self) -> Fleet:
        """The nodes that share the limits."""
        if self._fleet is None:
            self._fleet = self._fleet_now()
        return self._fleet

    def decide(self, request: ChargeSet, places: Sequence[int] | None = None) -> Decision:
        """Decide a request on this node's shares. `places` are those of its charges in a larger request."""
        with self._lock:
            shared = [self._shared(charge) for charge in request.charges]
            for charge, share in zip(request.charges, shared, strict=True):
                if not _is_slot(charge):
                    self._start(charge, share)
            decision = self._decided(request._replace(charges=tuple(shared)))
            if decision:
                self._note(request, decision, range(len(shared)) if places is None else places)
            return _fallback_decision(request, decision)

    def _decided(self, request: ChargeSet) -> Decision:
        """Slots are held apart from where units are counted, for they outlast an outage; still it is all or nothing."""
        slots, units = _split(request)
        if not slots or not units:
            (decision,) = (self._slots if slots else self._engine).decide([request])
            return decision
        token, reserve_us = request.token or secrets.token_hex(16), request.reserve_us
        # Without a token, slots are reserved for a moment, to be given back if the units do not fit.
        for_slots = ChargeSet(slots, 0, reserve_us or (0 if request.token else RETRY_US), token)
        for_units = request._replace(charges=units, token=token if reserve_us else None)
        (held,) = self._slots.decide([for_slots])
        if not held:
            for_units = ChargeSet(tuple(charge.of_kind(ChargeKind.PEEK) for charge in units))
        (counted,) = self._engine.decide([for_units])
        if held and not counted:
            self._give_back(for_slots)
        answers = {True: iter(held.rules), False: iter(counted.rules)}
        told = [next(answers[_is_slot(one)]) for one in request.charges for _ in one.limits]
        return combined(told, token=token if reserve_us else request.token)

    def _give_back(self, slots: ChargeSet) -> None:
        """Let go of slots that were held just now."""
        assert slots.token is not None
        if slots.reserve_us:
            self._slots.settle(slots.token, 0)
            return
        for charge in slots.charges:
            self._slots.release(charge.key, charge.limits[0], slots.token, charge.rule)

    def reserve_nothing(self, token: str | None, reserve_us: int) -> str:
        """Create a reservation without units; it can be settled like any other."""
        with self._lock:
            name = secrets.token_hex(16) if token is None else token
            self._reserve(name, ChargeSet((), reserve_us=reserve_us), (), charged=True)
            return name

    def settle(self, token: str, actual: Sequence[int]) -> bool | None:
        """Settle a reservation that was made here, unless it is too old; `None` if it was not made here."""
        with self._lock:
            found = self._reserved.pop(token, None)
            if found is None:
                return None
            request, places, ends_ns, charged = found
            if self._clock.ticks() >= ends_ns:
                return False
            costs = [
                (charge, actual[place % len(actual)])
                for charge, place in zip(request.charges, places, strict=True)
            ]
            used = tuple(cost for charge, cost in costs if not _is_slot(charge))
            kept = tuple(cost for charge, cost in costs if _is_slot(charge))
            taken = {
                (charge.key, limit, charge.rule): self._used(charge.key, limit, charge.rule)
                for charge in request.charges
                if not _is_slot(charge)
                for limit in charge.limits
            }
            parts = ((self._engine, used), (self._slots, kept))
            done = [engine.settle(token, part) for engine, part in parts if part]
            if not all(done):  # Its time is over, so it stays charged.
                return False
            given = {counted: before - self._used(*counted) for counted, before in taken.items()}
            counts = self._surplus if charged else self._admitted
            for charge, cost in costs:
                if not _is_slot(charge):
                    for limit in charge.limits:
                        counted = (charge.key, limit, charge.rule)
                        # What no longer counts was not given back, and others have to be charged for still.
                        units = max(cost - charge.cost, -max(0, given[counted]))
                        given[counted] += min(0, units)
                        self._add(counts, counted, units)
            return True

    def renew(self, key: str, limit: Limit, token: str, rule: str | None) -> bool | None:
        """Renew a slot that is held here; `None` if it is not."""
        with self._lock:
            found = self._held.get(token)
            if found is None:
                return None
            self._held[token] = (found[0], self._expiry(limit))
            return self._slots.renew(key, limit, token, rule)

    def release(self, key: str, limit: Limit, token: str, rule: str | None) -> bool:
        """Release a slot that is held here; false if the store is to be told, because it may have the slot."""
        with self._lock:
            if self._held.pop(token, None) is None:
                return False
            self._slots.release(key, limit, token, rule)
            if token not in self._moving:
                return True
            self._moving[token] = True
            return False

    def leave_line(self, decision: Decision) -> None:
        """Give back a place in line that was booked here."""
        with self._lock:
            share = self._share(decision.limited_by, decision.key)
            self._engine.leave_line(
                Decision(decision.key, share, decision.answer, decision.context)
            )

    def defer(self, verb: str, *args: object) -> None:
        """Queue a call for when the store is back."""
        self._later.append(Deferred(verb, args))

    # Recovery: what the store gets when it is back.

    def waiting(self) -> Iterator[Deferred]:
        """Queued settlements and releases, one by one; each leaves the queue when the next is requested.

        Calls queued again with `defer` meanwhile are left for the next round.
        """
        for _ in range(len(self._later)):
            if not self._later:
                return
            one = self._later[0]
            yield one
            with self._lock:  # If there are too many, the first may have been dropped meanwhile.
                if self._later and self._later[0] is one:
                    self._later.popleft()

    def slots(self) -> list[tuple[str, ChargeSet]]:
        """Slots held here, by token, to be moved to the store."""
        with self._lock:
            now_ns = self._clock.ticks()
            self._held = {token: one for token, one in self._held.items() if one[1] > now_ns}
            self._moving = {one: at for one, at in self._moving.items() if one in self._held}
            return [(token, request) for token, (request, _) in self._held.items()]

    def moving(self, token: str) -> bool:
        """The store is asked to take this slot, and may have it from now on; false if it is not held any more."""
        with self._lock:
            if token in self._held:
                self._moving[token] = False
            return token in self._held

    def moved(self, token: str, *, taken: bool | None) -> bool:
        """What the store has answered, if anything; false if it may have a slot that was released meanwhile."""
        with self._lock:
            released = self._moving.get(token, False)
            if released or taken is not None:
                self._moving.pop(token, None)
            if taken and token in self._held:
                self._give_back(self._held.pop(token)[0])
            return not released or taken is False

    def next_debts(self, most: int) -> list[ChargeSet]:
        """The next charges to force on the store; they are owed until they are `paid`."""
        found: list[ChargeSet] = []
        with self._lock:
            for token, reserved in self._reserved.items():
                self._reserved[token] = reserved._replace(charged=True)
            while self._surplus and len(found) < most:
                counted, units = self._surplus.popitem()
                found.append(_forced(counted, units))
            while self._admitted and len(found) < most:
                counted, admitted = self._admitted.popitem()
                key, limit, rule = counted
                units = min(admitted, self._used(key, limit, rule))
                if units > 0:
                    found.append(_forced(counted, units))
            self._in_flight.update((id(request), request) for request in found)
        return found

    def paid(self, charges: Sequence[ChargeSet]) -> None:
        """The store has been charged for these, or never will be."""
        with self._lock:
            for request in charges:
                self._in_flight.pop(id(request), None)

    def restore_debts(self) -> None:
        """Put back the charges that were not paid."""
        with self._lock:
            unpaid = list(self._in_flight.values())
            self._in_flight.clear()
            for request in unpaid:
                (charge,) = request.charges
                counted = (charge.key, charge.limits[0], charge.rule)
                self._add(self._surplus, counted, charge.cost)

    def note_merged(self, decisions: Sequence[Decision]) -> None:
        """Record what the store answered to charges by force: the next outage starts from that."""
        for one in decisions:
            self.known.of(one.limited_by, one.rule).note(one.key, one.answer)

    def end_outage(self) -> None:
        """The store has been charged for everything. What was spent of a share stays spent."""
        with self._lock:
            if not (self._admitted or self._surplus or self._in_flight):
                self._begin_outage()

    def _used(self, key: str, limit: Limit, rule: str | None) -> int:
        return self._engine.usage(key, self._share(limit, key), rule).used

    def _share(self, limit: Limit, key: str) -> Limit:
        if capacity(limit) < self.fleet.nodes:  # Which nodes get a unit depends on the key.
            return share_of(limit, self.fleet, key)
        share = self._shares.get(limit)
        if share is None:
            if len(self._shares) >= MAX_LIMITS:
                self._shares.clear()
            share = self._shares[limit] = share_of(limit, self.fleet, key)
        return share

    def _shared(self, charge: Charge) -> Charge:
        limits = tuple(self._share(limit, charge.key) for limit in charge.limits)
        return ReadyCharge(charge.key, limits, charge.cost, charge.kind, charge.rule)

    def _start(self, charge: Charge, share: Charge) -> None:
        """Start a key that is new in this outage with no more units than the store last reported."""
        for limit, part in zip(charge.limits, share.limits, strict=True):
            state = (charge.key, part.identity, charge.rule)
            if state in self._begun or len(self._begun) >= MAX_KEYS:
                continue
            self._begun.add(state)
            remaining = self.known.of(limit, charge.rule).remaining(charge.key)
            if remaining is None:
                continue
            spent = self._engine.usage(charge.key, part, charge.rule).used
            used = capacity(part) - remaining - spent
            if used > 0:
                taken = ReadyCharge(charge.key, (part,), used, ChargeKind.FORCE, charge.rule)
                self._engine.decide([ChargeSet((taken,))])

    def _note(self, request: ChargeSet, decision: Decision, places: Sequence[int]) -> None:
        """Record what was admitted as owed to the store."""
        slots, units = _split(request)
        for charge in units:
            if charge.kind is not ChargeKind.PEEK and charge.cost:
                for limit in charge.limits:
                    self._add(self._admitted, (charge.key, limit, charge.rule), charge.cost)
        if request.reserve_us:
            if decision.token is not None:
                self._reserve(decision.token, request, places)
        elif slots and request.token is not None and len(self._held) < MAX_KEYS:
            held = ChargeSet(slots, token=request.token)
            self._held[request.token] = (held, self._expiry(slots[0].limits[0]))

    def _reserve(
        self, token: str, request: ChargeSet, places: Sequence[int], *, charged: bool = False
    ) -> None:
        """Remember a reservation, if there is room; those that nobody has settled in time make way."""
        now_ns = self._clock.ticks()
        if len(self._reserved) >= MAX_KEYS and now_ns >= self._expires_ns:
            self._expires_ns = now_ns + EXPIRE_EVERY_NS
            self._reserved = {
                name: one for name, one in self._reserved.items() if one.ends_ns > now_ns
            }
        if len(self._reserved) < MAX_KEYS:
            ends_ns = now_ns + 1000 * request.reserve_us
            self._reserved[token] = Reserved(request, places, ends_ns, charged)

    def _expiry(self, limit: Limit) -> int:
        ttl_us = limit.ttl_us if isinstance(limit, Concurrency) else 0
        return self._clock.ticks() + 1000 * ttl_us

    def _add(self, counts: dict[Counted, int], counted: Counted, units: int) -> None:
        before = counts.get(counted)
        if before is None and len(counts) >= MAX_KEYS:
            self.unmerged += 1
        elif (now := (before or 0) + units) > 0:
            counts[counted] = now
        else:
            counts.pop(counted, None)


def _is_slot(charge: Charge) -> bool:
    return any(isinstance(limit, Concurrency) for limit in charge.limits)


def _split(request: ChargeSet) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
    """The charges that hold slots, and those that take units."""
    slots = tuple(charge for charge in request.charges if _is_slot(charge))
    return slots, tuple(charge for charge in request.charges if not _is_slot(charge))


def _forced(counted: Counted, units: int) -> ChargeSet:
    key, limit, rule = counted
    return ChargeSet((ReadyCharge(key, (limit,), units, ChargeKind.FORCE, rule),))


def _fallback_decision(request: ChargeSet, decision: Decision) -> Decision:
    """The caller's decision: about the limits requested, and with its source."""
    asked = [(charge, limit) for charge in request.charges for limit in charge.limits]
    answers = [
        _fallback_answer(charge, limit, answer)
        for (charge, limit), answer in zip(asked, decision.rules, strict=True)
    ]
    context = decision.context
    return combined(answers, token=context.token, mark=context.mark)


def _fallback_answer(charge: Charge, limit: Limit, decision: Decision) -> Decision:
    allowed, remaining, retry_after_us, reset_after_us, level = decision.answer
    if retry_after_us == NEVER and charge.cost <= capacity(limit):
        retry_after_us = RETRY_US  # Too much for the share, but not for the limit.
    source: Source = "shadow" if charge.kind is ChargeKind.SHADOW else "fallback"
    context = Context(source, degraded=True, rule=charge.rule)
    answer = (allowed, remaining, retry_after_us, reset_after_us, level)
    return Decision(charge.key, limit, answer, context)
