"""Races of leased hits on Redis against exact ones: over many keys, and on one that is hot.

What is compared is what each sustains. A chunk lasts up to three seconds, so a slice of leased hits is as long: every
busy key takes a chunk in each, and uses it up or gives it back. The first slice, from which a node learns which keys
are busy, is not counted in the ratio; a row of its own says what a hit takes in its first moments.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import uvloop

from headgate import leased
from headgate.guards.stack import leases_of

from ..harness import Contender, Race, race, table
from ..redis.contenders import CallerGroup, Headgate, Quota

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer

    from ..harness import Keys

MANY_KEYS_GAIN, HOT_KEY_GAIN = 4.0, 6.0
"""So many times as many hits at least, leased."""
ALGORITHMS = ("token_bucket", "sliding_window", "fixed_window")
QUOTA = Quota(1_000_000_000, "day")
"""For each key: nobody is denied."""


@dataclass(frozen=True)
class Settings:
    """How long to measure."""

    rounds: int
    hits: int
    """In a slice of exact hits."""
    leased_repeat: int
    """How often a leased slice is run, so that it takes as long as a chunk lasts."""
    keys: int
    first_hits: int = 20
    """For each key, before the race: a node that has just started."""
    callers: int = 64
    seed: int = 2026


FULL = Settings(rounds=7, hits=200_000, leased_repeat=18, keys=10_000)
QUICK = Settings(rounds=2, hits=200_000, leased_repeat=18, keys=10_000)


@dataclass(frozen=True)
class Row:
    """One contender, compared with another one."""

    name: str
    ns: float
    ratio: float
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether its target was reached; `None` without one."""
        return None if self.target is None else self.ratio >= self.target


@dataclass(frozen=True)
class Result:
    """What a race found."""

    name: str
    title: str
    rows: list[Row]
    race: Race = field(repr=False)
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything, raw rounds included."""
        return {
            "title": self.title,
            "rows": [vars(row) | {"met": row.met} for row in self.rows],
            "notes": self.notes,
            "rounds_ns": {
                name: [round(ns, 1) for ns in rounds] for name, rounds in self.race.rounds.items()
            },
        }

    def as_text(self) -> str:
        """A table."""
        head = ["", "ns", "per second", "x exact", "target", ""]
        return table(self.title, head, [_cells(row) for row in self.rows])


def _cells(row: Row) -> list[str]:
    target = "" if row.target is None else f"at least {row.target:g}"
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    return [row.name, f"{row.ns:,.0f}", f"{1e9 / row.ns:,.0f}", f"{row.ratio:.2f}", target, verdict]


class LeasedHeadgate(Headgate):
    """The same calls, with a limit that is leased."""

    def __init__(self, algorithm: str, url: str, quota: Quota) -> None:
        super().__init__(algorithm, url, quota)
        self.rate: Any = leased(str(quota), algorithm)
        self.algorithm: Any = None


def on_redis(server: RedisServer, settings: Settings, keys: int, target: float) -> Iterator[Result]:
    """Hits by many tasks, exact and leased, one algorithm after the other."""
    for algorithm in ALGORITHMS:
        server.call("FLUSHALL", "SYNC")
        loop = uvloop.new_event_loop()
        try:
            outcome, first_ns, notes = _exact_and_leased(
                loop, server.url, settings, algorithm, keys
            )
        finally:
            loop.close()
        exact_ns = outcome.ns("exact")
        rows = [
            Row("exact", exact_ns, 1.0),
            Row("leased", outcome.ns("leased"), outcome.times_faster("leased", "exact"), target),
        ]
        if keys > 1:
            rows.append(Row("leased, at first", first_ns, exact_ns / first_ns))
        many = "one key" if keys == 1 else f"{keys:,} keys"
        title = f"{algorithm}, {settings.callers} callers, {many}, every hit allowed"
        yield Result(f"{algorithm}_{keys}", title, rows, outcome, notes)


def _exact_and_leased(
    loop: Any, url: str, settings: Settings, algorithm: str, keys: int
) -> tuple[Race, float, dict[str, Any]]:
    async def make() -> tuple[Headgate, LeasedHeadgate]:
        return Headgate(algorithm, url, QUOTA), LeasedHeadgate(algorithm, url, QUOTA)

    exact, chunked = loop.run_until_complete(make())
    groups = [CallerGroup(loop, one, settings.callers) for one in (exact, chunked)]
    field = [
        Contender("exact", groups[0].run_untimed),
        Contender("leased", groups[1].run_untimed, repeat=settings.leased_repeat),
    ]
    first_ns = _first_hits(groups[1], settings, keys)
    outcome = race(field, _slices(settings, settings.hits, keys), settings.seed)
    leases = leases_of(chunked.limiter.engine)
    totals = leases.totals() if leases is not None else None
    for one in (exact, chunked):
        if not loop.run_until_complete(one.allows(key_name(0))):
            raise AssertionError("denials were measured, too")
        loop.run_until_complete(one.close())
    return outcome, first_ns, {} if totals is None else totals._asdict()


def _first_hits(group: CallerGroup, settings: Settings, keys: int) -> float:
    """What a hit takes while a node learns which keys are busy."""
    (chosen,) = _slices(replace(settings, rounds=0), settings.first_hits * keys, keys)
    started_ns = perf_counter_ns()
    group.run_untimed(chosen)
    return (perf_counter_ns() - started_ns) / len(chosen)


def key_name(number: int) -> str:
    """The name of a key; the first one is used in every race."""
    return f"user:{number:07}"


def _slices(settings: Settings, hits: int, keys: int) -> Iterator[Keys]:
    chance = random.Random(settings.seed)
    names = [key_name(number) for number in range(keys)]
    for _ in range(settings.rounds + 1):
        yield chance.choices(names, k=hits)


def everything(server: RedisServer, settings: Settings) -> Iterator[Result]:
    """All races, one after the other."""
    yield from on_redis(server, settings, settings.keys, MANY_KEYS_GAIN)
    yield from on_redis(server, settings, 1, HOT_KEY_GAIN)
