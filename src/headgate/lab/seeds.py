"""Many seeds on all cores: the counts of every simulator, and how its seeds are divided among processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound="SeedSummary[Any]")


@dataclass
class SeedSummary(Generic[S]):
    """The results of all seeds together."""

    again: ClassVar[str]
    """Extra command line arguments to reproduce one of them."""
    situations: ClassVar[type[Any]]
    """Rare situations that seeds must reach."""

    seeds: int = 0
    operations: int = 0
    virtual_us: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[S] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)
    """Seeds that broke a promise, and how."""

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken

    def missed(self) -> list[S]:
        """Situations that no seed reached."""
        return [one for one in self.situations if not self.reached[one]]

    def join(self, other: SeedSummary[S]) -> None:
        """Add the results of other seeds."""
        self.seeds += other.seeds
        self.operations += other.operations
        self.virtual_us += other.virtual_us
        self.faults += other.faults
        self.reached += other.reached
        self.broken.update(other.broken)

    def as_json(self) -> dict[str, Any]:
        """The summary for programs."""
        return {
            "seeds": self.seeds,
            "operations": self.operations,
            "virtual_hours": round(self.virtual_us / 3.6e9, 2),
            "faults": dict(sorted(self.faults.items())),
            "reached": {one.value: self.reached[one] for one in self.situations},
            "missed": [one.value for one in self.missed()],
            "broken": {str(seed): words for seed, words in sorted(self.broken.items())},
        }


def run_seeds(
    total: T,
    seeds: Iterable[int],
    run_chunk: Callable[[list[int]], T],
    *,
    chunk: int,
    jobs: int,
    progress: Callable[[T], None] | None,
) -> T:
    """Run the seeds in chunks, in `jobs` processes, and merge their results."""
    for part in _mapped(run_chunk, _chunks(seeds, chunk), jobs):
        total.join(part)
        if progress is not None:
            progress(total)
    return total


def _chunks(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _mapped(
    run_chunk: Callable[[list[int]], T], chunks: Iterator[list[int]], jobs: int
) -> Iterator[T]:
    if jobs == 1:
        yield from map(run_chunk, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_chunk, chunks)
