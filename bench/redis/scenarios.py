"""What the contenders are asked, one method a question."""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import uvloop

from ..harness import Contender, Race, race, table, verify
from . import targets
from .ceiling import Ceiling
from .contenders import (
    ENTRIES,
    OURS,
    PEERS,
    THREE_CHARGES,
    CallerGroup,
    Plain,
    PlainLimits,
    Quota,
    Times,
)
from .memory import bytes_per_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

    from tests.servers.redis import RedisServer

    from ..harness import Keys
    from .contenders import Entrant, Entry

ROOMY = Quota(1_000)
ROOMIER = Quota(1_000_000)
"""For keys that everybody shares."""
TIGHT = Quota(100)
LASTING = Quota(100, "day")
"""For keys that are weighed: one unit must not be forgotten before all keys have theirs."""
DENIED_KEYS = 100
SERVER = "server: "


@dataclass(frozen=True)
class Settings:
    """How long to measure."""

    rounds: int
    hits: Mapping[int, int]
    """Checks in a slice, by the number of concurrent callers; with 512, whole batches of the ceiling."""
    keys: int
    denied_hits: int
    denied_repeat: int
    """The deny cache asks again after a second at most: run so often that this is a small part."""
    weighed_keys: int
    seed: int = 2026


FULL = Settings(
    rounds=15,
    hits={1: 500, 64: 4_096, 512: 8_192},
    keys=10_000,
    denied_hits=2_048,
    denied_repeat=150,
    weighed_keys=100_000,
)
QUICK = Settings(
    rounds=5,
    hits={1: 100, 64: 768, 512: 2_048},
    keys=10_000,
    denied_hits=512,
    denied_repeat=300,
    weighed_keys=5_000,
)


@dataclass(frozen=True)
class Row:
    """One contender in one scenario."""

    name: str
    per_second: float
    p50_us: float | None = None
    p99_us: float | None = None
    times_best_peer: float | None = None
    ceiling_share: float | None = None


@dataclass(frozen=True)
class Promise:
    """A target, and what was reached."""

    scenario: str
    algorithm: str
    what: str
    reached: float
    target: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.reached <= self.target if self.at_most else self.reached >= self.target


@dataclass(frozen=True)
class Result:
    """What a scenario found."""

    name: str
    title: str
    best_peer: str
    rows: list[Row]
    promises: list[Promise]
    race: Race = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Everything, raw rounds included."""
        return {
            "title": self.title,
            "best_peer": self.best_peer,
            "rows": [asdict(row) for row in self.rows],
            "promises": [asdict(one) | {"met": one.met} for one in self.promises],
            "rounds_ns": {
                name: [round(ns, 1) for ns in rounds] for name, rounds in self.race.rounds.items()
            },
        }

    def as_text(self) -> str:
        """Everybody, the fastest first."""
        head = ["", "per second", "p50 us", "p99 us", "x best peer", "% of the server", ""]
        return table(
            self.title,
            head,
            [
                [
                    row.name,
                    f"{row.per_second:,.0f}",
                    _number(row.p50_us, "{:,.1f}"),
                    _number(row.p99_us, "{:,.1f}"),
                    _number(row.times_best_peer, "{:.2f}x"),
                    _number(row.ceiling_share, "{:.0%}"),
                    "Headgate" if row.name in OURS else "best peer" * (row.name == self.best_peer),
                ]
                for row in sorted(self.rows, key=lambda row: -row.per_second)
            ],
        )


class Bench:
    """All scenarios, on one server and in one event loop."""

    def __init__(self, server: RedisServer, settings: Settings) -> None:
        self._server = server
        self._url = f"redis://127.0.0.1:{server.port}"
        self._settings = settings
        self._loop = uvloop.new_event_loop()
        chance = random.Random(settings.seed)
        self._chance = chance
        self._keys = [f"user:{number:07}" for number in range(settings.keys)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    def everything(self) -> Iterator[Result]:
        """All races, one after the other."""
        for callers in self._settings.hits:
            yield self.allowed(callers)
        yield self.denied(64)
        yield self.three_charges(64)
        yield self.plain()

    def verify_all(self) -> None:
        """See that everybody really limits."""
        with self._entrants(ENTRIES, Quota(5, "day")) as entrants:
            for name, entrant in entrants.items():

                def allows(key: str, entrant: Entrant = entrant) -> bool:
                    return self._loop.run_until_complete(entrant.allows(key))

                verify(name, allows, 5)

    def allowed(self, callers: int) -> Result:
        """Many keys, random order, every check allowed."""
        with self._entrants(ENTRIES, ROOMY) as entrants, ExitStack() as stack:
            groups = {name: CallerGroup(self._loop, one, callers) for name, one in entrants.items()}
            field = [
                Contender(name, group.run, group.times.settle) for name, group in groups.items()
            ]
            if callers in targets.CEILING_SHARE:
                for name in OURS:
                    ceiling = Ceiling(name, self._server.port, ROOMY, self._keys)
                    stack.enter_context(ceiling)
                    field.append(Contender(SERVER + name, ceiling.run))
            outcome = race(field, self._slices(callers), self._settings.seed)
        times = {name: group.times for name, group in groups.items()}
        caller = "1 caller" if callers == 1 else f"{callers} callers"
        return _result(
            f"allowed_{callers}",
            f"{caller}, {len(self._keys):,} keys, every check allowed",
            outcome,
            times,
            speed=targets.SPEED.get(callers),
            ceiling_share=targets.CEILING_SHARE.get(callers),
            p99_share=targets.P99_SHARE.get(callers),
        )

    def denied(self, callers: int) -> Result:
        """Few keys, nearly every check denied."""
        settings = self._settings
        keys = self._keys[:DENIED_KEYS]
        with self._entrants(ENTRIES, TIGHT) as entrants:
            groups = {name: CallerGroup(self._loop, one, callers) for name, one in entrants.items()}
            for group in groups.values():
                group.run_untimed(keys * TIGHT.limit)
            field = [
                Contender(
                    name, group.run_untimed, repeat=settings.denied_repeat if name in OURS else 1
                )
                for name, group in groups.items()
            ]
            slices = (
                self._chance.choices(keys, k=settings.denied_hits)
                for _ in range(settings.rounds + 1)
            )
            outcome = race(field, slices, settings.seed)
        title = f"{callers} callers, {len(keys)} keys with {TIGHT}, nearly every check denied"
        return _result(f"denied_{callers}", title, outcome, {}, speed=targets.DENIED_SPEED)

    def three_charges(self, callers: int) -> Result:
        """Three keys in one decision, all or nothing, against three separate hits."""
        with self._entrants(THREE_CHARGES, ROOMIER) as entrants:
            groups = {name: CallerGroup(self._loop, one, callers) for name, one in entrants.items()}
            field = [
                Contender(name, group.run, group.times.settle) for name, group in groups.items()
            ]
            outcome = race(field, self._slices(callers, share=0.5), self._settings.seed)
        times = {name: group.times for name, group in groups.items()}
        title = (
            f"{callers} callers, three charges in one decision, all or nothing "
            "(limits: three hits, one after the other)"
        )
        return _result(f"three_charges_{callers}", title, outcome, times)

    def plain(self) -> Result:
        """One thread, no event loop."""
        times: dict[str, Times] = {}
        with ExitStack() as stack:
            stack.callback(self._server.call, "FLUSHALL", "SYNC")
            field = []
            entrants: dict[str, Plain | PlainLimits] = {
                **{name: Plain(name, self._url, ROOMY) for name in OURS},
                **{
                    f"limits {strategy}": PlainLimits(strategy, self._url, ROOMY)
                    for strategy in PlainLimits.strategies
                },
            }
            for name, entrant in entrants.items():
                stack.callback(entrant.close)
                times[name] = Times()

                def run(
                    keys: Keys, entrant: Plain | PlainLimits = entrant, name: str = name
                ) -> None:
                    entrant.work(keys, times[name].took_ns)

                field.append(Contender(name, run, times[name].settle))
            outcome = race(field, self._slices(1), self._settings.seed)
        return _result("plain_1", "One thread, plain calls, no event loop", outcome, times)

    def weights(self) -> dict[str, float]:
        """Bytes per key of everybody."""
        with self._entrants(ENTRIES, LASTING) as entrants:
            return {
                name: self._loop.run_until_complete(
                    bytes_per_key(self._server, entrant, self._settings.weighed_keys)
                )
                for name, entrant in entrants.items()
            }

    @contextmanager
    def _entrants(self, entries: Mapping[str, Entry], quota: Quota) -> Iterator[dict[str, Entrant]]:
        """Everybody, connected to an empty server."""

        async def make() -> dict[str, Entrant]:
            return {name: entry(self._url, quota) for name, entry in entries.items()}

        async def close(entrants: Iterable[Entrant]) -> None:
            for entrant in entrants:
                await entrant.close()

        self._server.call("FLUSHALL", "SYNC")
        entrants = self._loop.run_until_complete(make())
        try:
            yield entrants
        finally:
            self._loop.run_until_complete(close(entrants.values()))
            self._server.call("FLUSHALL", "SYNC")

    def _slices(self, callers: int, share: float = 1.0) -> Iterator[Keys]:
        hits = int(self._settings.hits[callers] * share)
        for _ in range(self._settings.rounds + 1):
            yield self._chance.choices(self._keys, k=hits)


def _result(
    name: str,
    title: str,
    outcome: Race,
    times: Mapping[str, Times],
    *,
    speed: float | None = None,
    ceiling_share: float | None = None,
    p99_share: float | None = None,
) -> Result:
    """Compare each of our algorithms with the fastest peer that took part, and with its ceiling."""
    best = outcome.fastest(one for one in outcome.rounds if one in PEERS)
    rows, promises = [], []
    for one in outcome.rounds:
        row = _row(outcome, one, best, times.get(one))
        rows.append(row)
        if one not in OURS:
            continue
        assert row.times_best_peer is not None
        if speed is not None:
            promises.append(Promise(name, one, "times the best peer", row.times_best_peer, speed))
        if ceiling_share is not None and row.ceiling_share is not None:
            share = row.ceiling_share
            promises.append(Promise(name, one, "share of the server", share, ceiling_share))
        if p99_share is not None:
            pairs = zip(times[one].p99_ns, times[best].p99_ns, strict=True)
            share = median(own / theirs for own, theirs in pairs)
            promises.append(
                Promise(name, one, "p99, of the best peer's", share, p99_share, at_most=True)
            )
    return Result(name, title, best, rows, promises, outcome)


def _row(outcome: Race, name: str, best: str, times: Times | None) -> Row:
    ceiling = SERVER + name
    return Row(
        name,
        1e9 / outcome.ns(name),
        median(times.p50_ns) / 1e3 if times else None,
        median(times.p99_ns) / 1e3 if times else None,
        None if name.startswith(SERVER) else outcome.times_faster(name, best),
        outcome.times_faster(name, ceiling) if ceiling in outcome.rounds else None,
    )


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)
