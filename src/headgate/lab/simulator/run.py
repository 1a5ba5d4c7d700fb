"""One seed, from start to verdict.

The seed draws everything: the number of nodes, their clocks, the limits, the requests, and which kinds of faults are
possible at all. (A run with few kinds explores each of them more deeply.) First there is chaos, then everything is
healed; a while later nothing may fail any more. Finally the store's counts are read.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ...algorithms import Concurrency, FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from ...guards.chunks import OF_WINDOW
from ..history import read_history
from ..recorder import header_of
from ..scene import Scene
from ..verdict import judge
from .clients import API, SLOTS, TOGETHER, HistoryLines, SimulatedClients
from .clocks import EPOCH_US
from .link import SimulatedLink
from .loop import SimulatedLoop
from .nemesis import DRAIN_US, FAULTS, LAG_US, Nemesis
from .node import SimulatedNode
from .sometimes import Sometimes
from .store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ..verdict import HistoryVerdict

START_US: Final = 1_000_000
CHAOS_US: Final = 2_500_000
RECOVERY_US: Final = 1_000_000
LIVENESS_US: Final = 800_000
QUIET_US: Final = 5_000_000
LEDGERS: Final = 4
TIMEOUTS_US: Final = (25_000, 100_000, 500_000)
POLICIES: Final = ("raise", "raise", "fallback", "fallback", "fallback", "closed", "open")
HOLDERS_FAULTS: Final = ("node_killed", "paused", "deaf")
LEASED: Final = 0.06
"""The fraction of seeds with a leased limit; they are slow, because many requests have to come in a short time."""
VERBS: Final = {
    "check": 20,
    "together": 6,
    "peek": 3,
    "force": 1,
    "reset": 2,
    "reserve": 5,
    "hold": 6,
}


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of one seed."""

    seed: int
    lines: list[bytes]
    verdict: HistoryVerdict
    reached: Counter[Sometimes]
    faults: Counter[str]
    problems: list[str]
    """Problems that no history shows: uncaught exceptions, and answers that never came."""

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return self.verdict.holds and not self.problems

    def digest(self) -> str:
        """A digest of the history: the same in every process, for the same seed and code."""
        return hashlib.sha256(b"".join(self.lines)).hexdigest()


def simulate(seed: int, kinds: Sequence[str] = FAULTS) -> SimulatedRun:
    """Run one seed with these kinds of faults, or some of them, and check the history."""
    rng = Random(seed)
    before = random.getstate()
    # Code with its own generator, such as the breaker, becomes reproducible as well.
    random.seed(seed)
    try:
        return _simulate(seed, kinds, rng)
    finally:
        random.setstate(before)


def _simulate(seed: int, kinds: Sequence[str], rng: Random) -> SimulatedRun:
    plan = _plan(rng)
    limits, nodes, timeout_us = plan["limits"], plan["nodes"], plan["timeout_us"]
    lease_us = limits[API].window_us // OF_WINDOW
    heals = START_US + CHAOS_US
    ends = heals + RECOVERY_US + LIVENESS_US
    loop, reached = SimulatedLoop(START_US), Counter[Sometimes]()
    book = HistoryLines(
        header_of(
            "redis", plan["mode"], limits, epoch_us=EPOCH_US, seed=seed, title=f"simulation {seed}",
            parameters={
                "nodes": nodes, "lag_us": LAG_US, "drain_us": DRAIN_US, "recovery_us": RECOVERY_US,
                "on_error": plan["policy"], "in_flight": plan["clients"],
                "lease_us": lease_us,
            },
        )
    )  # fmt: skip
    store = SimulatedStore(loop, reached)
    names = tuple([f"node {number}" for number in range(nodes)])
    fleet = [
        SimulatedNode(
            name, loop, SimulatedLink(loop, store, rng, reached, repeats=0.1), rng, reached,
            timeout_us, book, policy=plan["policy"], members=names,
            clock_offset_us=rng.choice(plan["offsets_us"]), rate=rng.choice(plan["rates"]),
            lease_us=lease_us,
        )
        for name in names
    ]  # fmt: skip
    possible = [kind for kind in kinds if rng.random() < plan["variety"]] or list(kinds[:1])
    if limits[API].leased:  # The faults that matter most to holders of units.
        possible += [kind for kind in kinds if kind in HOLDERS_FAULTS]
    nemesis = Nemesis(loop, book, store, fleet, limits[API], possible, heals - 1, rng, reached)
    clients = SimulatedClients(
        loop, book, store, fleet, limits, plan["verbs"], plan["keys"], plan["pace_us"], rng, reached,
        ends, heals + RECOVERY_US,
    )  # fmt: skip
    nemesis.start(rng.randint(1, 6))
    clients.start(plan["clients"])
    for number in range(LEDGERS):  # A count that is read while requests are in flight is not used.
        loop.run(heals + RECOVERY_US + number * LIVENESS_US // LEDGERS)
        _read_ledger(store, book, limits, plan["keys"], loop.now)
    loop.run(ends + QUIET_US)
    _read_ledger(store, book, limits, plan["keys"], loop.now)
    loop.close()
    verdict = judge(Scene(read_history(book.lines)))
    faults = Counter(kind for kind, _, _ in nemesis.happened)
    return SimulatedRun(
        seed, book.lines, verdict, reached, faults, [*loop.crashes, *clients.problems]
    )


def _plan(rng: Random) -> dict[str, Any]:
    window_us = rng.choice((200_000, 500_000, 1_000_000, 4_000_000))
    number = rng.choice((1, 3, 5, 10, 20))
    verbs = {
        verb: weight for verb, weight in VERBS.items() if verb == "check" or rng.random() < 0.4
    }
    limits: dict[str, Limit] = {API: _limit(rng, number, window_us)}
    limits[TOGETHER] = _limit(rng, 3 * number, rng.choice((window_us, 2 * window_us)))
    limits[SLOTS] = Concurrency(rng.choice((1, 3, 6)), rng.choice((100_000, 400_000, 800_000)))
    policy = rng.choice(POLICIES)
    leased = rng.random() < LEASED
    if leased:
        limits[API] = _leased_limit(rng)
    if policy == "fallback":
        verbs.pop("hold", None)  # Slots that move between nodes and store are not in a history.
    return {
        "limits": limits,
        "verbs": verbs,
        "policy": policy,
        "mode": "leased" if leased else "exact",
        # A share is counted by the node's own clock, so that has to be right.
        "offsets_us": (0,) if policy == "fallback" else (0, 0, -3_600_000_000, 7_000_000),
        "rates": (1_000,) if policy == "fallback" else (1_000, 1_000, 1_000, 900, 1_100),
        "nodes": rng.randint(1, 2 if leased else 4),
        "clients": rng.randint(2, 4),
        "keys": 1 if leased else rng.choice((1, 1, 2, 3)),
        # A key is leased if a node gets many requests for it in a twentieth of its window.
        "pace_us": 8_000 if leased else rng.choice((100_000, 200_000, 400_000)),
        "timeout_us": rng.choice(TIMEOUTS_US),
        "variety": rng.choice((0.2, 0.5, 1.0)),
    }


def _leased_limit(rng: Random) -> Limit:
    """A limit that is worth leasing."""
    number, window_us = rng.choice((200, 500, 1_500)), rng.choice((1_000_000, 4_000_000))
    kind = rng.choice((FixedWindow, SlidingWindow, TokenBucket))
    return kind(number, window_us).as_leased()


def _limit(rng: Random, number: int, window_us: int) -> Limit:
    kind = rng.choice((FixedWindow, SlidingWindow, SlidingLog, TokenBucket))
    if kind is TokenBucket:
        return TokenBucket(number, window_us, rng.choice((1, number, 2 * number)))
    return kind(number, window_us)


def _read_ledger(
    store: SimulatedStore, book: HistoryLines, limits: dict[str, Limit], keys: int, now: int
) -> None:
    """Read the store's final counts."""
    assert store.master is not None
    names = [f"key {number}" for number in range(keys)]
    store.master.clock.us = store.now_us()
    for rule, key in [*((API, name) for name in names), (TOGETHER, "everyone")]:
        used = store.master.engine.usage(key, limits[rule], rule).used
        book.operation(f="ledger", key=key, rule=rule, t0=now, t1=now, type="allow", used=used)
