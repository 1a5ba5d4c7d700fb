"""Regions in escrow: real accounts, and stores that count as the engines do and may come back empty.

A region has a store and two nodes. Every step of a node that needs the store is a separate event, and so is every
message; between any two of them the node may die, and its store may come back empty, with another clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ...algorithms import FixedWindow
from ...regions.escrow import (
    Counted,
    EscrowAccount,
    KeyWindow,
    Look,
    RecordGrant,
    StoreEpoch,
    TakeOff,
)
from .sometimes import RegionSometimes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Generator, Mapping

    from ...algorithms.fixed_window import Window
    from ...regions.escrow import RightsAsk, RightsGrant, StoreStep
    from .world import RegionWorld

STEP_US: Final = (100, 3_000)
STRAYS: Final = 0.1
"""The fraction of answers that reach another node of the region than the one that asked."""
CLOCK_OFF_US: Final = 1_000_000
"""How far the clock of a store may be from the true time."""


@lru_cache(4_096)
def _window(limit: int, window_us: int) -> FixedWindow:
    return FixedWindow(limit, window_us)


@dataclass(eq=False)
class EscrowStore:
    """The store of a region: counts, and recorded grants."""

    world: RegionWorld
    region: str
    window_us: int
    off_us: int = 0
    lives: int = 0
    counts: dict[str, Window | None] = field(default_factory=dict)
    records: dict[tuple[str | None, str, str, int], int] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    epoch: StoreEpoch = field(init=False)

    def __post_init__(self) -> None:
        self.epoch = self.new_epoch()

    def now_us(self) -> int:
        """Its clock."""
        return self.world.now_us + self.off_us

    def new_epoch(self) -> StoreEpoch:
        """The epoch of an empty store."""
        return StoreEpoch(f"{self.region} {self.lives}", self.now_us())

    def restart_empty(self, off_us: int) -> None:
        """Restart without any data, perhaps on another machine."""
        self.lives += 1
        self.off_us = off_us
        self.counts.clear()
        self.records.clear()
        self.recorded.clear()
        self.epoch = self.new_epoch()

    def take(self, key: str, limit: int, cost: int) -> Counted:
        """Take units if they fit; a cost of 0 only looks."""
        asked = _window(limit, self.window_us)
        now_us = self.now_us()
        state, (allowed, left, *_) = asked.take(self.counts.get(key), now_us, cost)
        self.counts[key] = state
        start_us = (
            asked.bounds_us(now_us)[0]
            if state is None
            else max(state[0], asked.bounds_us(now_us)[0])
        )
        return Counted(allowed, left, start_us, self.epoch)

    def do(self, step: StoreStep) -> Any:
        """Carry out a step of an account."""
        match step:
            case Look(window, rights):
                return self.take(window.key, rights, 0)
            case TakeOff(window, rights, units):
                return self.take(window.key, rights, units)
            case RecordGrant(grant):
                return self.record(grant)

    def record(self, grant: RightsGrant) -> int | None:
        """Record a grant, once, if it was made to this store."""
        ask = grant.ask
        if ask.epoch != self.epoch.id:
            self.world.reached[RegionSometimes.GRANT_FOR_PAST] += 1
            return None
        name = ask.window.name
        if ask.id in self.recorded:
            self.world.reached[RegionSometimes.GRANT_AGAIN] += 1
        else:
            self.recorded.add(ask.id)
            self.records[name] = self.records.get(name, 0) + grant.units
        return self.records[name]


@dataclass(eq=False)
class EscrowNode:
    """A node: it decides hits, asks for rights and gives them."""

    world: RegionWorld
    store: EscrowStore
    neighbours: Mapping[str, list[EscrowNode]]
    shares_of: Callable[[KeyWindow], Mapping[str, int]]
    admitted: Counter[tuple[str, int]]
    """Units admitted, by key and start of the window."""
    name: str
    lives: int = 0
    _asks: int = 0
    account: EscrowAccount = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start with only what the store knows."""
        self.lives += 1
        self.account = EscrowAccount(
            self.store.region, self.shares_of, self.store.epoch, self._new_id
        )

    def hit(self, key: str, limit: int, cost: int) -> None:
        """Handle a client's hit."""
        store, account = self.store, self.account
        # A node's view of its store's clock is a little old.
        window = self._window(key, limit, store.now_us() + self.world.rng.randint(-5_000, 5_000))
        rights = account.rights(window)

        def decide() -> None:
            counted = store.take(key, rights, cost)
            self.world.later(*STEP_US, lambda: answered(counted))

        def answered(counted: Counted) -> None:
            if self.account is not account:
                return  # It died meanwhile, and the client with it.
            if account.admits(window, rights, counted):
                self.admitted[key, counted.start_us] += cost
            elif counted.allowed and counted.epoch.id != store.region + " 0":
                self.world.reached[RegionSometimes.EMPTIED_UNKNOWN] += 1
            if counted.start_us != window.start_us:
                self.world.reached[RegionSometimes.TURNED] += 1
            else:
                self._look_for_rights(window, counted.left if counted.allowed else 0)

        self.world.later(*STEP_US, decide)

    def read_records(self, key: str, limit: int) -> None:
        """Read what other nodes of the region were granted."""
        window = self._window(key, limit, self.store.now_us())
        self.account.set_recorded_total(
            window, self.store.epoch.id, self.store.records.get(window.name, 0)
        )

    def _window(self, key: str, limit: int, now_us: int) -> KeyWindow:
        asked = _window(limit, self.store.window_us)
        return KeyWindow("api", key, asked.identity, limit, *asked.bounds_us(now_us))

    def _look_for_rights(self, window: KeyWindow, left: int) -> None:
        ask = self.account.ask(window, left, self.world.now_us)
        if ask is not None:
            other = self.world.rng.choice(self.neighbours[ask.giver])
            self.world.send(self.store.region, ask.giver, lambda: other.asked(ask, self))

    def asked(self, ask: RightsAsk, asker: EscrowNode) -> None:
        """Handle another region's ask."""
        if ask.id in self.account._answered:
            self.world.reached[RegionSometimes.ASKED_AGAIN] += 1
        self._carry_out(
            self.account.answer(ask, self.store.now_us()), lambda grant: self._answer(grant, asker)
        )

    def _answer(self, grant: RightsGrant | None, asker: EscrowNode) -> None:
        if grant is None:
            return
        if self.world.rng.random() < STRAYS:
            asker = self.world.rng.choice(self.neighbours[asker.store.region])
        self.world.send(self.store.region, asker.store.region, lambda: asker.granted(grant))

    def granted(self, grant: RightsGrant) -> None:
        """Handle an answer, which may reach any node of the region."""
        if grant.units:
            self.world.reached[RegionSometimes.GRANTED] += 1
            if self.store.now_us() >= grant.ask.window.end_us:
                self.world.reached[RegionSometimes.GRANT_LATE] += 1
            if grant.ask.epoch != self.account.epoch.id:
                self.world.reached[RegionSometimes.GRANT_FOR_PAST] += 1
        self._carry_out(self.account.take_in(grant, self.world.now_us), lambda _: None)

    def _carry_out(
        self, steps: Generator[StoreStep, Any, Any], done: Callable[[Any], None]
    ) -> None:
        """Run the steps of an account, each as a separate event; a node that dies between two stops there."""
        account, result, reached = self.account, None, self.world.reached
        epoch, took_off = self.store.epoch, False

        def go_on() -> None:
            nonlocal result, took_off
            if self.account is not account:
                if took_off:
                    reached[RegionSometimes.NODE_DIED] += 1
                return
            if self.store.epoch != epoch:
                reached[RegionSometimes.GIVER_EMPTY] += 1
            try:
                step = steps.send(result)
            except StopIteration as end:
                done(end.value)
                return
            self.world.later(*STEP_US, lambda: carried_out(step))

        def carried_out(step: StoreStep) -> None:
            nonlocal result, took_off
            result = self.store.do(step)
            took_off = type(step) is TakeOff and result.allowed
            if took_off and self.world.rng.random() < self.world.deadly:
                self.start()
            self.world.later(*STEP_US, go_on)

        go_on()

    def _new_id(self) -> str:
        self._asks += 1
        return f"{self.name}.{self.lives}.{self._asks}"
