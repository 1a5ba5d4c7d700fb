"""Escrow under attack: any order of events, messages lost, repeated and late, a crash between any two steps."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.lab.region_simulator.escrow import EscrowStore
from headgate.lab.region_simulator.world import START_US
from headgate.regions.escrow import CLOCK_MARGIN_US, EscrowAccount, KeyWindow
from headgate.regions.shares import shares

if TYPE_CHECKING:
    from collections.abc import Generator

    from headgate.regions.escrow import RightsAsk, RightsGrant

WINDOW_US = 10_000_000
NAMES = ("east", "north", "west")
regions = st.sampled_from(NAMES)
which = st.integers(0, 1_000)


class Steps:
    """An account at work: what it waits for, and what the store has said."""

    def __init__(self, region: str, account: EscrowAccount, work: Generator[Any, Any, Any]) -> None:
        self.region, self.account, self.work = region, account, work
        self.wanted: Any = None
        self.told: Any = None


class EscrowMachine(RuleBasedStateMachine):
    """Three regions with a node each; every rule is one event."""

    @initialize(
        limit=st.integers(0, 20),
        weights=st.tuples(*[st.integers(1, 5)] * 3),
        off_us=st.tuples(*[st.integers(-1_000_000, 1_000_000)] * 3),
    )
    def begin(
        self, limit: int, weights: tuple[int, int, int], off_us: tuple[int, int, int]
    ) -> None:
        self.now_us = START_US
        self.reached: Counter[Any] = Counter()
        self.limit, self.weights = limit, dict(zip(NAMES, weights, strict=True))
        self.ids = count()
        # The world of the simulator is time and figures; this machine is both.
        self.stores = {
            name: EscrowStore(self, name, WINDOW_US, off)  # type: ignore[arg-type]
            for name, off in zip(NAMES, off_us, strict=True)
        }
        self.now_us += 2 * WINDOW_US
        self.accounts = {name: self.new_account(name) for name in NAMES}
        self.asks: list[RightsAsk] = []
        self.grants: list[RightsGrant] = []
        self.working: list[Steps] = []
        self.hits: list[tuple[str, EscrowAccount, KeyWindow, int, int, Any]] = []
        self.admitted: Counter[int] = Counter()

    def new_account(self, name: str) -> EscrowAccount:
        return EscrowAccount(
            name,
            lambda window: shares(window.limit, self.weights),
            self.stores[name].epoch,
            lambda: str(next(self.ids)),
        )

    def window_of(self, region: str) -> KeyWindow:
        now_us = self.stores[region].now_us()
        start_us = now_us - now_us % WINDOW_US
        identity = f"fixed_window:{WINDOW_US}"
        return KeyWindow("api", "hot", identity, self.limit, start_us, start_us + WINDOW_US)

    @rule(region=regions, cost=st.integers(1, 4))
    def send_a_hit(self, region: str, cost: int) -> None:
        account, window = self.accounts[region], self.window_of(region)
        self.hits.append((region, account, window, account.rights(window), cost, None))

    @precondition(lambda self: self.hits)
    @rule(number=which)
    def go_on_with_a_hit(self, number: int) -> None:
        place = number % len(self.hits)
        region, account, window, rights, cost, counted = self.hits.pop(place)
        if counted is None:
            counted = self.stores[region].take("hot", rights, cost)
            self.hits.append((region, account, window, rights, cost, counted))
        elif account is self.accounts[region] and account.admits(window, rights, counted):
            self.admitted[counted.start_us] += cost

    @rule(region=regions, left=st.integers(0, 5))
    def ask_for_rights(self, region: str, left: int) -> None:
        asked = self.accounts[region].ask(self.window_of(region), left, self.now_us)
        if asked is not None:
            self.asks.append(asked)

    @precondition(lambda self: self.asks)
    @rule(number=which)
    def deliver_an_ask(self, number: int) -> None:
        """It stays where it was, so it may come again, and much later."""
        asked = self.asks[number % len(self.asks)]
        account = self.accounts[asked.giver]
        self.working.append(Steps(asked.giver, account, account.answer(asked, self.now_us)))

    @precondition(lambda self: self.grants)
    @rule(number=which)
    def deliver_a_grant(self, number: int) -> None:
        grant = self.grants[number % len(self.grants)]
        region = grant.ask.asker
        account = self.accounts[region]
        self.working.append(Steps(region, account, account.take_in(grant, self.now_us)))

    @precondition(lambda self: self.working)
    @rule(number=which)
    def go_on_with_a_step(self, number: int) -> None:
        place = number % len(self.working)
        steps = self.working[place]
        if steps.account is not self.accounts[steps.region]:
            del self.working[place]  # The node has died.
            return
        if steps.wanted is not None:
            steps.told = self.stores[steps.region].do(steps.wanted)
            steps.wanted = None
            return
        try:
            steps.wanted = steps.work.send(steps.told)
        except StopIteration as end:
            del self.working[place]
            if end.value is not None:
                self.grants.append(end.value)

    @rule(region=regions)
    def kill_a_node(self, region: str) -> None:
        self.accounts[region] = self.new_account(region)

    @rule(region=regions, off_us=st.integers(-1_000_000, 1_000_000))
    def empty_a_store(self, region: str, off_us: int) -> None:
        self.stores[region].restart_empty(off_us)

    @rule(region=regions)
    def read_the_records(self, region: str) -> None:
        store, window = self.stores[region], self.window_of(region)
        total = store.records.get(window.name, 0)
        self.accounts[region].set_recorded_total(window, store.epoch.id, total)

    @rule(us=st.sampled_from((1, 100_000, 2_000_000, WINDOW_US)))
    def wait(self, us: int) -> None:
        self.now_us += us

    @invariant()
    def what_was_admitted_and_what_still_may_be_is_at_most_the_limit(self) -> None:
        if not hasattr(self, "admitted"):
            return
        for start_us in {*self.admitted, *(self.window_of(name).start_us for name in NAMES)}:
            may = sum(self.may_admit(name, start_us) for name in NAMES)
            assert self.admitted[start_us] + may <= self.limit, (start_us, self.admitted, may)

    def may_admit(self, name: str, start_us: int) -> int:
        """What is left of a region's rights, as its store has them."""
        store = self.stores[name]
        window = self.window_of(name)._replace(start_us=start_us)
        under_way = start_us <= store.epoch.began_us + CLOCK_MARGIN_US
        share = 0 if under_way else shares(self.limit, self.weights)[name]
        counted = store.counts.get("hot")
        if counted is not None and counted[0] > start_us:
            return 0  # Its count has moved on to a later window, and never goes back.
        used = counted[1] if counted is not None and counted[0] == start_us else 0
        return max(0, share + store.records.get(window.name, 0) - used)


EscrowMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestEscrow = EscrowMachine.TestCase
