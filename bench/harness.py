"""How things are timed here, so that a ratio means something on a machine that is never quiet.

**Interleaved.** Every contender gets a short slice in every round, in shuffled order. Whatever slows
the machine down for a second slows all of them, and none is always first or last.

**Ratios inside a round.** Two contenders are compared slice by slice of the same round, and the
reported ratio is the median of those. Absolute times are medians too; read them as a hint, since they
move by some 15 % from run to run, and trust the ratios.

**Verified first.** A limiter that allows everything is fast. Before anything is timed each contender has
to admit exactly its limit, deny the next, and keep two keys apart.

**The collector stays on**, as in a real program, but what exists when timing starts is frozen: nobody
pays for walking through the objects of a neighbour.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

Keys: TypeAlias = Sequence[str]


def nothing() -> None:
    """What most contenders need to settle down."""


@dataclass(frozen=True)
class Contender:
    """Somebody who takes part in a race."""

    name: str
    run: Callable[[Keys], object]
    """The slice that is timed: one operation for each key, in a loop of its own."""
    settle: Callable[[], object] = nothing
    """Called after a slice, untimed: lets background work end before the next one's turn."""
    repeat: int = 1
    """How often to run a slice: for one so fast that a single run would measure how it starts."""


@dataclass(frozen=True)
class Race:
    """The outcome: nanoseconds per operation of every contender in every round."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def ns(self, name: str) -> float:
        """The median time of one operation."""
        return median(self.rounds[name])

    def times_faster(self, name: str, than: str) -> float:
        """How many operations of `name` fit into one of `than`: the median over the rounds."""
        pairs = zip(self.rounds[name], self.rounds[than], strict=True)
        return median(theirs / own for own, theirs in pairs)

    def fastest(self, names: Iterable[str]) -> str:
        """The one with the smallest median."""
        return min(names, key=self.ns)


def race(contenders: Sequence[Contender], slices: Iterable[Keys], seed: int) -> Race:
    """Give every contender every slice, in an order that is shuffled for each.

    The first slice is a warm-up, and is not counted.
    """
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    outcome = Race({contender.name: [] for contender in contenders})
    if len(outcome.rounds) < len(order):
        raise ValueError("two contenders have the same name")
    with frozen_heap():
        for number, keys in enumerate(slices):
            shuffle(order)
            for contender in order:
                run, times = contender.run, range(contender.repeat)
                started_ns = perf_counter_ns()
                for _ in times:
                    run(keys)
                took_ns = perf_counter_ns() - started_ns
                contender.settle()
                if number:
                    outcome.rounds[contender.name].append(took_ns / len(keys) / len(times))
    return outcome


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Hide everything that exists now from the garbage collector; in a heap that was frozen before, for good."""
    was_frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
            gc.collect()


def verify(name: str, allows: Callable[[str], bool], limit: int) -> None:
    """Refuse to time a contender that is not a limiter of `limit` units for each key."""
    answers = [allows("verify:a") for _ in range(limit + 3)]
    if answers != [True] * limit + [False] * 3:
        raise AssertionError(f"{name} should admit {limit} and then deny, but answered {answers}")
    if not allows("verify:b"):
        raise AssertionError(f"{name} lets one key use up the limit of another")


def facts(packages: Iterable[str]) -> dict[str, str]:
    """What a reader must know about the machine, and nothing that would tell whose it is."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **{package: version(package) for package in packages},
    }


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text in columns: words left, numbers right, and no column in which everybody has a dash."""
    columns = [
        column
        for column in zip(head, *rows, strict=True)
        if any(cell != "-" for cell in column[1:])
    ]
    lines = [list(line) for line in zip(*columns, strict=True)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    numeric = [
        any(line[i] for line in lines[1:]) and all(_is_number(line[i]) for line in lines[1:])
        for i in range(len(columns))
    ]
    text = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([f"\n{title}", "", text[0], rule, *text[1:]])


def _is_number(cell: str) -> bool:
    return cell in {"", "-"} or cell.rstrip("x%").replace(",", "").replace(".", "").isdigit()


def save(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, raw rounds included, so that others can do their own statistics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
