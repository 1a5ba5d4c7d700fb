"""Escrow: regions hold rights that add up to the limit, and pass them to each other, so it is never exceeded.

A region's rights for one window of one key are its share of the limit, plus grants from other regions. Its store counts
what it admits as usual, with the rights as the limit. To give rights away, the store takes them off that count, as if
they had been used; only then is the grant sent. So a lost message loses rights, but none can duplicate them: a grant
carries the id of the ask that it answers, and the receiver's store counts an id once.

    limit 90     share   granted   given away   may admit
    east            30       +45           -0          75
    north           30        +0          -15          15
    west            30        +0          -30           0

A node's knowledge of its region's rights may be out of date. That is safe, because grants only add to them within a
window, and what was given away is part of the count. Rights end with their window.

A store that comes back without its counts has a new `StoreEpoch`, and no share of windows that were under way then:
nobody knows how much it had admitted. Grants for the previous epoch are refused.

Everything here is pure: generators yield the steps for the store (`Look`, `TakeOff`, `RecordGrant`). So the service and
the simulator run the same code, and the simulator can stop it between any two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .rights_figures import RightsHeld

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

CLOCK_MARGIN_US: Final = 2_000_000
"""How far the clock of a new store may be behind that of the previous one."""
LOW: Final = 4
"""Rights are low when less than this fraction (a quarter) of them is left."""
PATIENCE_US: Final = 1_000_000
"""How long to wait for an answer before another region is asked."""
FIRST_PAUSE_US: Final = 50_000
"""How long to wait before asking a region again that had nothing to give; doubles each time."""
LONGEST_PAUSE_US: Final = 5_000_000
MAX_WINDOWS: Final = 10_000
"""How many windows of keys a node remembers; the oldest are dropped, and read again when needed."""


class StoreEpoch(NamedTuple):
    """An epoch of a store: from when it was empty until it loses its data."""

    id: str
    began_us: int
    """By the store's own clock."""


class KeyWindow(NamedTuple):
    """One window of one key: what rights are held for."""

    rule: str | None
    key: str
    identity: str
    """The algorithm and its window, as in `Limit.identity`."""
    limit: int
    """The units that all regions together may admit."""
    start_us: int
    end_us: int

    @property
    def name(self) -> tuple[str | None, str, str, int]:
        """Independent of the limit: rights do not change when the number is changed."""
        return self.rule, self.key, self.identity, self.start_us


class RightsAsk(NamedTuple):
    """A request for rights, from a region that runs low to another."""

    id: str
    asker: str
    epoch: str
    """The epoch of the asker's store."""
    giver: str
    window: KeyWindow
    left: int
    """The units that the asker can still admit."""


class RightsGrant(NamedTuple):
    """The answer: these units belong to the asker from now on; may be 0."""

    ask: RightsAsk
    units: int
    left: int
    """The units that the giver can still admit."""


class Look(NamedTuple):
    """Read from the store how many rights are left; answered with `Counted`."""

    window: KeyWindow
    rights: int


class TakeOff(NamedTuple):
    """Take units off in the store, like a hit, with the rights as the limit; answered with `Counted`.

    Once answered, it must be durable.
    """

    window: KeyWindow
    rights: int
    units: int


class RecordGrant(NamedTuple):
    """Record a grant in the store, if it has that epoch and does not know the id of the ask.

    Answered with the total granted to the region in that window, or `None` if the epoch differs.
    """

    grant: RightsGrant


class Counted(NamedTuple):
    """The store's answer to a hit or to a step."""

    allowed: bool
    left: int
    """Units left of the limit in the request."""
    start_us: int
    """The start of the window it counted in, by its own clock."""
    epoch: StoreEpoch


StoreStep: TypeAlias = Look | TakeOff | RecordGrant


@dataclass(slots=True)
class _Neighbour:
    """What is known about another region's rights in one window."""

    left: int
    pause_us: int = FIRST_PAUSE_US
    not_before_us: int = 0
    asked_us: int = 0


@dataclass(slots=True)
class _Holding:
    """What a node knows about its region's rights in one window."""

    window: KeyWindow
    received: int = 0
    given: int = 0
    """Units that this node has given away."""
    pending: RightsAsk | None = None
    given_up_us: int = 0
    """When to stop waiting for the pending ask."""
    others: dict[str, _Neighbour] = field(default_factory=dict)


class EscrowAccount:
    """Manages the rights of its region on one node."""

    def __init__(
        self,
        region: str,
        shares_of: Callable[[KeyWindow], Mapping[str, int]],
        epoch: StoreEpoch,
        new_id: Callable[[], str],
    ) -> None:
        self.region = region
        self.epoch = epoch
        self._shares_of = shares_of
        """The shares of all regions in the window's limit; they add up to it."""
        self._new_id = new_id
        self._past: set[str] = set()
        self._holdings: dict[tuple[str | None, str, str, int], _Holding] = {}
        self._answered: dict[str, RightsGrant] = {}

    def held(self, now_us: int) -> RightsHeld:
        """The region's rights in current windows in which this node has asked for or given rights."""
        known = [
            one
            for one in self._holdings.values()
            if one.window.start_us <= now_us < one.window.end_us
        ]
        units = sum(self.rights(one.window) - one.given for one in known)
        return RightsHeld(len(known), units)

    # Deciding.

    def rights(self, window: KeyWindow) -> int:
        """The units of the window's limit that the region may admit, as far as this node knows; never too many."""
        holding = self._holdings.get(window.name)
        received = 0 if holding is None else holding.received
        return self.share(window) + received

    def admits(self, window: KeyWindow, rights: int, counted: Counted) -> bool:
        """Whether a hit is admitted, given the store's answer to a request with `rights` as the limit.

        The store may have begun another window meanwhile, or have lost its data: what it has allowed counts only as far
        as there are rights in the window that it counted in.
        """
        if counted.epoch != self.epoch:
            self.set_epoch(counted.epoch)
            return False
        used = rights - counted.left
        return counted.allowed and used <= self.rights(window._replace(start_us=counted.start_us))

    def set_epoch(self, epoch: StoreEpoch) -> None:
        """Note the store's epoch. A new one invalidates everything that was known before."""
        if epoch.id == self.epoch.id or epoch.id in self._past:
            return
        self._past.add(self.epoch.id)
        self.epoch = epoch
        self._holdings.clear()
        self._answered.clear()

    # Asking.

    def is_low(self, window: KeyWindow, left: int) -> bool:
        """Whether so few units are left that other regions should be asked."""
        rights = self.rights(window)
        return left * LOW < rights or not rights

    def ask(self, window: KeyWindow, left: int, now_us: int) -> RightsAsk | None:
        """The next ask to send, if rights are needed and some region may have any."""
        if not self.is_low(window, left):
            return None
        holding = self._holding(window)
        if holding.pending is not None:
            if now_us < holding.given_up_us:
                return None
            self.unanswered(holding.pending, now_us)
        giver = _richest(holding, now_us)
        if giver is None:
            return None
        asked = RightsAsk(self._new_id(), self.region, self.epoch.id, giver, window, left)
        holding.pending, holding.given_up_us = asked, now_us + PATIENCE_US
        holding.others[giver].asked_us = now_us
        return asked

    def unanswered(self, ask: RightsAsk, now_us: int) -> None:
        """Record that an ask was not answered in time; a late grant still counts."""
        self._note_left(ask, 0, 0, now_us)

    def take_in(self, grant: RightsGrant, now_us: int) -> Generator[StoreStep, Any, None]:
        """Accept a grant; it counts once the store has recorded it."""
        ask = grant.ask
        if ask.asker != self.region or ask.epoch != self.epoch.id:
            return
        total: int | None = None
        if grant.units:
            total = yield RecordGrant(grant)
        self._note_left(ask, grant.units, grant.left, now_us)
        if total is not None and ask.epoch == self.epoch.id:
            holding = self._holding(ask.window)
            holding.received = max(holding.received, total)

    def set_recorded_total(self, window: KeyWindow, epoch: str, total: int) -> None:
        """Take over the total that the store has on record, which other nodes of the region may have added to."""
        if epoch == self.epoch.id:
            holding = self._holding(window)
            holding.received = max(holding.received, total)

    # Giving.

    def answer(self, ask: RightsAsk, now_us: int) -> Generator[StoreStep, Any, RightsGrant | None]:
        """Give as much as makes both equal, or all that is not needed here; the same ask gets the same answer."""
        window = ask.window
        if ask.giver != self.region or ask.asker == self.region:
            return None
        if ask.id in self._answered:
            return self._answered[ask.id]
        rights, epoch = self.rights(window), self.epoch
        seen: Counted = yield Look(window, rights)
        self.set_epoch(seen.epoch)
        if self.epoch != epoch or seen.start_us != window.start_us:
            has_not_begun = seen.start_us < window.start_us
            return RightsGrant(ask, 0, self.rights(window) if has_not_begun else 0)
        units = self._units_for(ask, rights, seen.left, now_us)
        left = seen.left
        if units:
            taken: Counted = yield TakeOff(window, rights, units)
            self.set_epoch(taken.epoch)
            if not taken.allowed or self.epoch != epoch or taken.start_us != window.start_us:
                return RightsGrant(ask, 0, 0)  # If it was taken off after all, it is lost.
            left = taken.left
        grant = RightsGrant(ask, units, left)
        if units:
            _make_room(self._answered)
            self._answered[ask.id] = grant
            self._holding(window).given += units
        return grant

    def _units_for(self, ask: RightsAsk, rights: int, left: int, now_us: int) -> int:
        """How much to give of what is left: nothing if the asker has as much.

        After a quarter of the window, the need for the rest can be estimated, and everything beyond it given away.
        """
        window = ask.window
        half = max(0, -(-(left - ask.left) // 2))
        passed_us, rest_us = now_us - window.start_us, window.end_us - now_us
        if left <= ask.left or rest_us < 0 or 4 * passed_us < window.end_us - window.start_us:
            return half
        holding = self._holdings.get(window.name)
        used = rights - left - (0 if holding is None else holding.given)
        needed = -(-used * rest_us // passed_us)
        return max(half, left - max(0, needed))

    def forget(self, now_us: int) -> None:
        """Drop windows that are over, allowing for a clock that is a little behind."""
        before = now_us - CLOCK_MARGIN_US
        over = [name for name, one in self._holdings.items() if one.window.end_us < before]
        for name in over:
            del self._holdings[name]
        old_answers = [
            id_ for id_, grant in self._answered.items() if grant.ask.window.end_us < before
        ]
        for id_ in old_answers:
            del self._answered[id_]

    @property
    def share_from_us(self) -> int | None:
        """The region has its share of windows that begin after this; `None` if the store is not known yet."""
        return self.epoch.began_us + CLOCK_MARGIN_US if self.epoch.id else None

    def share(self, window: KeyWindow) -> int:
        """The units that the region starts a window with."""
        if window.start_us <= self.epoch.began_us + CLOCK_MARGIN_US:
            return 0
        return self._shares_of(window).get(self.region, 0)

    def _holding(self, window: KeyWindow) -> _Holding:
        holding = self._holdings.get(window.name)
        if holding is None:
            _make_room(self._holdings)
            shares = self._shares_of(window)
            others = {name: _Neighbour(n) for name, n in shares.items() if name != self.region}
            holding = self._holdings[window.name] = _Holding(window, others=others)
        return holding

    def _note_left(self, ask: RightsAsk, units: int, left: int, now_us: int) -> None:
        """Record what another region has left; one with nothing to give is not asked again for a while."""
        holding = self._holdings.get(ask.window.name)
        if holding is None:
            return
        if holding.pending is not None and holding.pending.id == ask.id:
            holding.pending = None
        neighbour = holding.others.get(ask.giver)
        if neighbour is None:
            return
        neighbour.left = left
        if units:
            neighbour.pause_us, neighbour.not_before_us = FIRST_PAUSE_US, 0
            return
        neighbour.not_before_us = now_us + neighbour.pause_us
        if left <= ask.left:
            longest_us = min(LONGEST_PAUSE_US, (ask.window.end_us - ask.window.start_us) // 8)
            neighbour.pause_us = max(FIRST_PAUSE_US, min(2 * neighbour.pause_us, longest_us))


def _richest(holding: _Holding, now_us: int) -> str | None:
    """The region with most units left in its last answer; among equals, the one not asked for longest.

    One that had nothing to give may be asked again after a pause.
    """
    candidates = [
        (one.left, -one.asked_us, name)
        for name, one in holding.others.items()
        if one.not_before_us <= now_us
    ]
    return max(candidates)[2] if candidates else None


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) >= MAX_WINDOWS:
        del known[next(iter(known))]
