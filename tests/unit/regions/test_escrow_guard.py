"""The guard of limits with escrow: which rights a request has, and which limit its answer is about."""

from __future__ import annotations

from typing import Any

from headgate import Charge, FixedWindow, MemoryEngine
from headgate.charge import ChargeSet
from headgate.guards.stack import guarded
from headgate.regions.escrow import EscrowAccount, KeyWindow, StoreEpoch
from headgate.regions.escrow_guard import EscrowGuard, window_of
from headgate.testing import ManualClock

HOUR_US = 3_600_000_000
RULE = "api"
SMALL, LARGE = (FixedWindow(limit, HOUR_US).across_regions("escrow") for limit in (10, 1_000))
EXACT = FixedWindow(100, HOUR_US)


class Store:
    """A store that never loses its counts."""

    epoch = StoreEpoch("one", 0)

    def __init__(self) -> None:
        self.clock = ManualClock()

    def now_us(self) -> int:
        return self.clock.now_us()

    def start_of(self, limit: FixedWindow, reset_after_us: int) -> int:
        """It counts in the window that runs now."""
        return limit.bounds_us(self.now_us())[0]


def test_requests_at_the_same_time_are_each_about_their_own_limit() -> None:
    """A rule may give its keys different limits. Rights are asked for in those, or keys would get those of others."""
    store = Store()
    account = EscrowAccount("eu", lambda one: {"eu": one.limit // 2}, store.epoch, str)
    low: list[KeyWindow] = []
    guard = EscrowGuard(account, store, lambda _limit, window, _left: low.append(window))
    engine = guarded(MemoryEngine(clock=store.clock), [guard])
    asked: list[tuple[str, Any]] = [("small", SMALL), ("large", LARGE)]
    decisions = engine.decide(
        [
            ChargeSet((Charge(key, limit, rule=RULE), Charge("all", EXACT, rule="other")))
            for key, limit in asked
        ]
    )
    assert [one.rules[0].limited_by for one in decisions] == [SMALL, LARGE]
    assert [one.rules[0].remaining for one in decisions] == [4, 499]
    assert low == [window_of(limit, RULE, key, store.now_us()) for key, limit in asked]
