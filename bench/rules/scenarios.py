"""What is measured about rules, and what is promised.

Finding and compiling are pure work, and are timed by what the processor spends on this thread: a busy neighbour then
costs them little. Taking over new rules is about waiting, and is timed by the clock on the wall.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, perf_counter_ns, sleep, thread_time_ns
from typing import TYPE_CHECKING, Any

from headgate import Limiter, Request, Rulebook
from headgate.rules.live.opening import open_rules
from headgate.service.garbage_collection import without_collection

from ..harness import frozen_heap, table
from .worlds import HOSTILE, WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from .worlds import World

SIZES = (1, 100, 10_000)
MAX_US = 15.0
MAX_TIMES = 3.0
"""How much longer ten thousand rules may take than a hundred."""
MAX_HOSTILE_US = 1_000.0
MAX_COMPILE_S = 0.2
MAX_RELOAD_S = 1.0
MAX_PAUSE_MS = 5.0
REST_NS = 100_000
"""Between two decisions of the thread that keeps deciding: a server, too, waits for its next request."""


@dataclass(frozen=True)
class Settings:
    """How long to measure."""

    rounds: int
    requests: int
    compiles: int
    reloads: int
    sizes: tuple[int, ...] = SIZES
    seed: int = 2026


FULL = Settings(rounds=21, requests=2_000, compiles=9, reloads=5)
QUICK = Settings(rounds=7, requests=500, compiles=3, reloads=2)


@dataclass(frozen=True)
class Row:
    """One line of a table: what it is, what was measured, and what was promised."""

    name: str
    figures: dict[str, float]
    promise: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Result:
    """What a scenario found."""

    name: str
    title: str
    rows: list[Row]

    def as_text(self) -> str:
        """The table for people."""
        head = ["", *self.rows[0].figures, "promise", ""]
        verdict = {True: "met", False: "MISSED", None: ""}
        lines = [
            [
                row.name,
                *(f"{figure:,.2f}" for figure in row.figures.values()),
                row.promise,
                verdict[row.met],
            ]
            for row in self.rows
        ]
        return table(self.title, head, lines)

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {row.name: {**row.figures, "met": row.met} for row in self.rows}


def everything(settings: Settings) -> Iterator[Result]:
    """All scenarios, one after the other."""
    yield finding(settings)
    yield hostile(settings)
    yield compiling(settings)
    yield reloading(settings)


def finding(settings: Settings) -> Result:
    """The time from a request to its charges, by number of rules."""
    rows = []
    few, many = settings.sizes[-2:]
    for world in WORLDS:
        rounds = _interleaved(
            {size: (_verified(world, size, settings), world) for size in settings.sizes}, settings
        )
        us = {size: median(found) for size, found in rounds.items()}
        times = median(slow / fast for fast, slow in zip(rounds[few], rounds[many], strict=True))
        figures = {f"{size:,} rules": took_us for size, took_us in us.items()}
        rows.append(
            Row(
                world.name,
                {**figures, "times": times},
                f"{MAX_US:g} us, {MAX_TIMES:g}x",
                met=us[many] <= MAX_US and times <= MAX_TIMES,
            )
        )
    return Result("finding", "From a request to its charges, in microseconds", rows)


def _interleaved(
    books: dict[int, tuple[Rulebook, World]], settings: Settings
) -> dict[int, list[float]]:
    """Microseconds per request of every rulebook in every round, each in turn; the first round is a warm-up."""
    rounds: dict[int, list[float]] = {size: [] for size in books}
    asked = {
        size: world.requests(size, settings.requests, settings.seed)
        for size, (_, world) in books.items()
    }
    with frozen_heap():
        for number in range(settings.rounds + 1):
            for size, (rulebook, _) in books.items():
                charges, requests = rulebook.charges, asked[size]
                started_ns = thread_time_ns()
                for request in requests:
                    charges(request)
                took_ns = thread_time_ns() - started_ns
                if number:
                    rounds[size].append(took_ns / len(requests) / 1_000)
    return rounds


def _verified(world: World, size: int, settings: Settings) -> Rulebook:
    """A rulebook that finds the rule it was asked for, and the one for everybody."""
    rulebook = Rulebook(world.rules(size))
    for request in world.requests(size, 20, settings.seed):
        slow = [charge.rule for charge in rulebook.explain(request).charges]
        found = [charge.rule for charge in rulebook.charges(request)]
        if found != slow or len(found) != min(size, 2):
            raise AssertionError(f"{world.name} of {size}: {request} finds {found}, not {slow}")
    return rulebook


def hostile(settings: Settings) -> Result:
    """Paths of 8 KB that are as costly as they can be, against the most rules."""
    books = [Rulebook(world.rules(settings.sizes[-1])) for world in WORLDS[:2]]
    rows = []
    for name, path in HOSTILE.items():
        request = Request("GET", path, ip="203.0.113.9")
        took_us = max(
            median(_times_us(partial(book.charges, request), settings.rounds)) for book in books
        )
        rows.append(Row(name, {"us": took_us}, f"{MAX_HOSTILE_US:,.0f}", took_us <= MAX_HOSTILE_US))
    return Result("hostile", "Hostile paths of 8 KB, in microseconds", rows)


def compiling(settings: Settings) -> Result:
    """From a rule set to a rulebook."""
    rows = []
    for world in WORLDS:
        rules = world.rules(settings.sizes[-1])
        with frozen_heap():
            took_s = median(_times_us(partial(Rulebook, rules), settings.compiles)) / 1e6
        rows.append(
            Row(world.name, {"seconds": took_s}, f"{MAX_COMPILE_S:g}", took_s <= MAX_COMPILE_S)
        )
    return Result("compiling", f"Compiling {settings.sizes[-1]:,} rules, in seconds", rows)


CHANGES: dict[str, Callable[[bytes, int], bytes]] = {
    "one changed": lambda rules, n: rules.replace(b"1000/minute", b"%d/minute" % (2_000 + n)),
    "all changed": lambda rules, n: rules.replace(b"/minute", b"/%d seconds" % (61 + n)),
}
"""What is different in the rules of the `n`th reload. A rule that says the same as before is not read again."""


def reloading(settings: Settings) -> Result:
    """New rules from a file, read, checked, compiled and swapped by one thread while another decides.

    The promise is about the service, which pauses the garbage collector meanwhile. The library leaves the collector to
    its program, so what it takes there is shown without a verdict.
    """
    rows = [
        _reloading(settings, name, change, without_collection) for name, change in CHANGES.items()
    ]
    alone = _reloading(settings, "all changed", CHANGES["all changed"], nullcontext)
    rows.append(Row(f"{alone.name}, collector running", alone.figures))
    return Result("reloading", "Taking over new rules while deciding", rows)


def _reloading(
    settings: Settings,
    name: str,
    change: Callable[[bytes, int], bytes],
    while_reading: Callable[[], AbstractContextManager[None]],
) -> Row:
    world, size = WORLDS[0], settings.sizes[-1]
    requests = world.requests(size, 200, settings.seed)
    took_s: list[float] = []
    meanwhile: list[Slowest] = []
    quiet: list[Slowest] = []
    with TemporaryDirectory() as folder:
        file, new = Path(folder) / "rules.json", Path(folder) / "new.json"
        file.write_bytes(world.document(size))
        live = open_rules(file, while_reading=while_reading)
        limiter = Limiter(rules=live)
        replaced: list[float] = []
        swapped: list[float] = []
        live.subscribe(lambda _: swapped.append(perf_counter()))

        def replace() -> None:
            replaced.append(perf_counter())
            new.replace(file)
            live.refresh()

        for reload in range(settings.reloads):
            quiet.append(_slowest(limiter, requests, _wait(0.5)))
            new.write_bytes(change(world.document(size), reload))
            before = limiter.rules_version
            meanwhile.append(_slowest(limiter, requests, replace))
            if limiter.rules_version == before:
                raise AssertionError(f"the new rules were not taken: {live.problem}")
            took_s.append(swapped[-1] - replaced[-1])
        live.close()
    promise = f"{MAX_RELOAD_S:g} s, {MAX_PAUSE_MS:g} ms"
    figures = {
        "seconds": median(took_s),
        "slowest decision, ms": median(slowest.decision_ms for slowest in meanwhile),
        "slowest of all, ms": max(slowest.decision_ms for slowest in meanwhile),
        "without reload": max(slowest.decision_ms for slowest in quiet),
        "with its wait, ms": median(slowest.with_wait_ms for slowest in meanwhile),
        "wait without reload": median(slowest.with_wait_ms for slowest in quiet),
    }
    met = figures["seconds"] <= MAX_RELOAD_S and figures["slowest decision, ms"] <= MAX_PAUSE_MS
    return Row(f"{size:,} rules from a file, {name}", figures, promise, met)


@dataclass(frozen=True)
class Slowest:
    """The longest that a decision took, and the longest from when it was due: its thread may have had to wait first."""

    decision_ms: float
    with_wait_ms: float


def _slowest(limiter: Limiter, requests: list[Request], work: Callable[[], object]) -> Slowest:
    """Decide until `work` is done in another thread."""
    thread = threading.Thread(target=work)
    slowest_ns = latest_ns = 0
    with frozen_heap():
        thread.start()
        while thread.is_alive():
            for request in requests:
                due_ns = perf_counter_ns() + REST_NS
                sleep(REST_NS / 1e9)
                started_ns = perf_counter_ns()
                limiter.decide_request(request)
                ended_ns = perf_counter_ns()
                slowest_ns = max(slowest_ns, ended_ns - started_ns)
                latest_ns = max(latest_ns, ended_ns - due_ns)
        thread.join()
    return Slowest(slowest_ns / 1e6, latest_ns / 1e6)


def _wait(seconds: float) -> Callable[[], object]:
    return lambda: threading.Event().wait(seconds)


def _times_us(call: Callable[[], object], times: int) -> list[float]:
    took = []
    for _ in range(times):
        started_ns = thread_time_ns()
        call()
        took.append((thread_time_ns() - started_ns) / 1_000)
    return took
