"""What the contenders are asked, one function a question."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..harness import Contender, Race, race, table, verify
from . import targets
from .contenders import ENTRIES, OURS, Floor, Headgate, HeadgateAsync, Limits, ThreadGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..harness import Keys
    from .targets import Target

ROOMY = 100_000
"""A limit that nobody reaches; a log cannot have a larger one."""
TIGHT = 100
THREADS = 4


@dataclass(frozen=True)
class Settings:
    """How long to measure."""

    rounds: int
    hits: int
    """Operations in a slice."""
    keys: int
    passes: int
    """How often to go through all keys, where there are many."""
    weighed_keys: int
    seed: int = 2026


FULL = Settings(rounds=21, hits=4_000, keys=100_000, passes=9, weighed_keys=1_000_000)
QUICK = Settings(rounds=7, hits=1_000, keys=100_000, passes=3, weighed_keys=100_000)


@dataclass(frozen=True)
class Row:
    """One of our algorithms in one scenario."""

    algorithm: str
    ns: float
    floors: float | None = None
    """How many floors high: its time in units of the least that is possible."""
    limits: str | None = None
    times_limits: float | None = None
    best_peer: str | None = None
    times_best_peer: float | None = None
    target: str | None = None
    met: bool | None = None
    build: str = "pure"


@dataclass(frozen=True)
class Result:
    """What a scenario found."""

    name: str
    title: str
    rows: list[Row]
    race: Race = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Everything, raw rounds included."""
        return {
            "title": self.title,
            "rows": [asdict(row) for row in self.rows],
            "median_ns": {name: round(self.race.ns(name), 1) for name in self.race.rounds},
            "rounds_ns": {
                name: [round(ns, 1) for ns in rounds] for name, rounds in self.race.rounds.items()
            },
        }

    def as_text(self) -> str:
        """Our rows against their targets, then what the others took."""
        head = ["", "ns", "per second", "x floor", "limits", "speed", "best peer", "speed"]
        ours = table(
            self.title,
            [*head, "target", ""],
            [
                [
                    row.algorithm
                    + ("*" if row.algorithm.startswith(targets.WITHOUT_EQUAL) else ""),
                    f"{row.ns:.0f}",
                    f"{1e9 / row.ns:,.0f}",
                    _times(row.floors),
                    row.limits or "-",
                    _times(row.times_limits),
                    row.best_peer or "-",
                    _times(row.times_best_peer),
                    row.target or "-",
                    _verdict(row.met),
                ]
                for row in self.rows
            ],
        )
        known = {row.algorithm for row in self.rows}
        others = sorted((self.race.ns(n), n) for n in self.race.rounds if n not in known)
        return ours + "\n  others: " + ", ".join(f"{name} {ns:.0f}" for ns, name in others)


def verify_all() -> None:
    """See that everybody really limits."""
    for name, entry in ENTRIES.items():
        entrant = entry(5)
        verify(name, entrant.allows, 5)
        entrant.settle()


def hot_key(settings: Settings, *, allow: bool) -> Result:
    """One key, hit again and again: always allowed (each slice from empty), or always denied."""
    entrants = {name: entry(ROOMY if allow else TIGHT) for name, entry in ENTRIES.items()}
    if not allow:
        for entrant in entrants.values():
            entrant.run(["user:42"] * 2 * TIGHT)
            entrant.settle()
    field = [Contender(name, one.run, one.settle) for name, one in entrants.items()]
    outcome = race([*field, _floor()], _hot_slices(settings, fresh=allow), settings.seed)
    verdict = "allowed" if allow else "denied"
    return Result(
        f"hot_{verdict}", f"One hot key, every hit {verdict}", _rows(outcome, targets.HOT), outcome
    )


def many_keys(settings: Settings) -> Result:
    """Many keys in random order, all known already, all allowed.

    A slice goes through all keys. A short one would find every key where the others' slices have pushed it, out of the
    caches, and would be over before those who sweep their keys in the background have to: both happen to nobody who
    uses one limiter.
    """
    entrants = {name: entry(1_000) for name, entry in ENTRIES.items()}
    floor = Floor(0)
    chance = random.Random(settings.seed)
    keys = [f"user:{number:07}" for number in range(settings.keys)]
    chance.shuffle(keys)
    for entrant in [*entrants.values(), floor]:
        entrant.run(keys)
        entrant.settle()
    slices = (chance.sample(keys, len(keys)) for _ in range(settings.passes + 1))
    field = [Contender(name, one.run, one.settle) for name, one in entrants.items()]
    outcome = race([*field, Contender("floor", floor.run)], slices, settings.seed)
    title = f"{settings.keys:,} keys in random order, every hit allowed"
    return Result("many_keys", title, _rows(outcome, targets.MANY_KEYS), outcome)


def new_keys(settings: Settings) -> Result:
    """A key that was never seen before, with every hit."""
    entrants = {name: entry(1_000) for name, entry in ENTRIES.items()}
    field = [Contender(name, one.run, one.settle) for name, one in entrants.items()]
    slices = (
        [f"user:{number:03}:{i:05}" for i in range(settings.hits)]
        for number in range(settings.rounds + 1)
    )
    outcome = race([*field, _floor()], slices, settings.seed)
    return Result("new_keys", "A new key with every hit (for information)", _rows(outcome), outcome)


def whole_answer(settings: Settings) -> Result:
    """What a response header needs: allowed, remaining and reset. `limits` has to be asked twice."""
    field = []
    for algorithm in targets.WHOLE_ANSWER:
        strategy = targets.LIMITS[algorithm]
        theirs = Limits(strategy.removeprefix("limits "), ROOMY)
        field.append(Contender(strategy, theirs.run_and_read, theirs.settle))
    field += [
        Contender(name, Headgate(build, algorithm, ROOMY).run_and_read)
        for name, (build, algorithm) in OURS.items()
        if algorithm in targets.WHOLE_ANSWER
    ]
    outcome = race([*field, _floor()], _hot_slices(settings, fresh=True), settings.seed)
    title = "One hot key, and reading allowed, remaining and reset (limits: hit + get_window_stats)"
    return Result("whole_answer", title, _rows(outcome, targets.WHOLE_ANSWER), outcome)


def three_charges(settings: Settings) -> Result:
    """Three keys in one decision, all or nothing, against three separate hits."""
    field = [
        Contender(name, Headgate(build, algorithm, 1_000_000).run_three_charges)
        for name, (build, algorithm) in OURS.items()
        if algorithm in targets.THREE_CHARGES
    ]
    for strategy in ("fixed", "sliding"):
        theirs = Limits(strategy, 1_000_000)
        field.append(Contender(f"limits {strategy}", theirs.run_three_hits, theirs.settle))
    outcome = race([*field, _floor()], _hot_slices(settings, fresh=True), settings.seed)
    title = (
        "Three charges in one decision, all or nothing (limits: three hits, one after the other)"
    )
    return Result("three_charges", title, _rows(outcome, targets.THREE_CHARGES), outcome)


def awaited(settings: Settings) -> Result:
    """`await hit()` against the plain call, in a loop that runs. Here the target is a price that must not be exceeded.

    To start a coroutine in a loop takes as long as a hundred hits, so slices are long. The two differ by a third, which
    takes many rounds to tell from noise.
    """
    field = []
    loops = []
    for name, (build, algorithm) in OURS.items():
        loops.append(entrant := HeadgateAsync(build, algorithm, ROOMY))
        plain = Headgate(build, algorithm, ROOMY)
        field += [Contender(name, plain.run), Contender(f"await {name}", entrant.run)]
    long = replace(settings, hits=10 * settings.hits, rounds=max(settings.rounds, 21))
    outcome = race(field, _hot_slices(long, fresh=True), settings.seed)
    for entrant in loops:
        entrant.close()
    rows = []
    for name, (build, _) in OURS.items():
        price = outcome.times_faster(name, f"await {name}")
        rows.append(
            Row(
                f"await {name}",
                outcome.ns(f"await {name}"),
                build=build.name,
                target=f"{price:.2f}x the plain call, at most {targets.MAX_ASYNC}x",
                met=price <= targets.MAX_ASYNC,
            )
        )
    return Result("awaited", "await hit() in a running loop, one hot key", rows, outcome)


def bound(settings: Settings) -> Result:
    """A limit that is bound to its key, against a hit that names both. Here, too, the target is a price."""
    field = []
    loops = []
    prices: list[tuple[str, str, str, str]] = []
    for name, (build, algorithm) in OURS.items():
        if algorithm not in targets.THREE_CHARGES:
            continue
        plain = Headgate(build, algorithm, 1_000_000)
        loops.append(awaited := HeadgateAsync(build, algorithm, 1_000_000))
        ways = {
            "limit.hit": plain.run_limit_hit,
            "acquire": plain.run_acquire,
            "with": plain.run_with,
        }
        awaited_ways = {"limit.hit": awaited.run_limit_hit, "acquire": awaited.run_acquire}
        field += [Contender(name, plain.run), Contender(f"await {name}", awaited.run)]
        field += [Contender(f"{way} {name}", run) for way, run in ways.items()]
        field += [Contender(f"await {way} {name}", run) for way, run in awaited_ways.items()]
        prices += [(f"{way} {name}", name, way, build.name) for way in ways]
        prices += [
            (f"await {way} {name}", f"await {name}", way, build.name) for way in awaited_ways
        ]
    long = replace(settings, hits=10 * settings.hits, rounds=max(settings.rounds, 11))
    outcome = race(field, _hot_slices(long, fresh=True), settings.seed)
    for entrant in loops:
        entrant.close()
    rows = []
    for name, plain_name, way, build_name in prices:
        price, most = outcome.times_faster(plain_name, name), targets.MAX_BOUND[way]
        text = f"{price:.2f}x the plain hit, at most {most}x"
        rows.append(Row(name, outcome.ns(name), build=build_name, target=text, met=price <= most))
    return Result("bound", "A limit bound to its key, one hot key, never waiting", rows, outcome)


def threads(settings: Settings) -> Result:
    """Several threads that share one limiter; time is the wall's, divided by all hits."""
    ours = [
        name
        for name, (_, algorithm) in OURS.items()
        if algorithm in {"fixed_window", "token_bucket"}
    ]
    field = []
    for name in [*ours, "limits fixed", "throttled gcra"]:
        entrant = ENTRIES[name](ROOMY)
        crowd = ThreadGroup(entrant, THREADS)
        field.append(Contender(name, crowd.run, entrant.settle))
    outcome = race(field, _hot_slices(settings, fresh=True), settings.seed)
    rows = [
        Row(
            name,
            outcome.ns(name),
            limits="limits fixed",
            times_limits=outcome.times_faster(name, "limits fixed"),
        )
        for name in ours
    ]
    title = f"{THREADS} threads, one limiter, one hot key (for information)"
    return Result("threads", title, rows, outcome)


def everything(settings: Settings) -> Iterator[Result]:
    """All scenarios, one after the other."""
    yield hot_key(settings, allow=True)
    yield hot_key(settings, allow=False)
    yield many_keys(settings)
    yield new_keys(settings)
    yield whole_answer(settings)
    yield three_charges(settings)
    yield awaited(settings)
    yield bound(settings)
    yield threads(settings)


def _floor() -> Contender:
    return Contender("floor", Floor(0).run)


def _hot_slices(settings: Settings, *, fresh: bool) -> Iterator[Keys]:
    for number in range(settings.rounds + 1):
        yield [f"user:{number}" if fresh else "user:42"] * settings.hits


def _rows(outcome: Race, wanted: Mapping[str, Target] | None = None) -> list[Row]:
    """Compare each of our algorithms that took part with its peers that did."""
    rows = []
    for name, (_, algorithm) in OURS.items():
        if name in outcome.rounds:
            rows.append(_row(outcome, name, (wanted or {}).get(algorithm)))
    return rows


def _row(outcome: Race, name: str, target: Target | None) -> Row:
    build, algorithm = OURS[name]
    limits = targets.LIMITS[algorithm]
    peers = [peer for peer in targets.CLOSEST[algorithm] if peer in outcome.rounds]
    best = outcome.fastest(peers) if peers else None
    speed = {
        "limits": outcome.times_faster(name, limits),
        "best peer": outcome.times_faster(name, best) if best else None,
    }
    reached = speed[target.of] if target else None
    return Row(
        name,
        outcome.ns(name),
        outcome.times_faster("floor", name),
        limits,
        speed["limits"],
        best,
        speed["best peer"],
        str(target) if target else None,
        reached >= target.times if reached is not None and target else None,
        build.name,
    )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def _verdict(met: bool | None) -> str:  # noqa: FBT001 - it is the only argument
    return "" if met is None else "met" if met else "MISSED"
