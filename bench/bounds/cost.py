"""CPU for each byte: every endpoint that reads a body, with every hostile body, at one, two and four times a size."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from time import process_time
from typing import TYPE_CHECKING, Final

from headgate.service.garbage_collection import freeze_existing_objects

from .calling import Calling
from .hostile import bodies_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .calling import Endpoint

ALLOWED_MS: Final = 50.0
"""For 64 KB of a body."""
FREE_MS: Final = 5.0
"""What any request may take, whatever its size; below this nothing is judged by how it grows."""
GROWTH: Final = 12.0
"""Four times the size may take so many times as long. Linear work takes four times as long, and more where a large body
no longer fits a cache; what grows with the square takes sixteen times."""
TRIES: Final = 3
SECOND_LOOKS: Final = 4
"""How often what seems to cost too much is measured again: whatever else the machine does only adds."""


@dataclass(frozen=True)
class Cost:
    """What one body costs one endpoint."""

    endpoint: str
    body: str
    status: int
    sizes: tuple[int, ...]
    ms: tuple[float, ...]

    @property
    def ms_per_64_kb(self) -> float:
        """At the largest size."""
        return self.ms[-1] * 65_536 / max(self.sizes[-1], 65_536)

    @property
    def growth(self) -> float:
        """How many times as long the largest takes as the smallest."""
        return self.ms[-1] / max(self.ms[0], 0.001)

    @property
    def holds(self) -> bool:
        """Whether that is within its bound, and linear."""
        bound = FREE_MS + ALLOWED_MS * self.sizes[-1] / 65_536
        linear = self.ms[-1] <= FREE_MS + GROWTH * self.ms[0]
        return self.ms[-1] <= bound and linear

    def or_less(self, other: Cost) -> Cost:
        """The less of two measurements, for each size."""
        return replace(self, ms=tuple(map(min, self.ms, other.ms)))

    def as_text(self) -> str:
        """One line."""
        ms = "  ".join(f"{one:8.2f}" for one in self.ms)
        verdict = "" if self.holds else "   TOO MUCH"
        return (
            f"{self.endpoint:22} {self.status} {ms} ms  x{self.growth:4.1f}  {self.body}{verdict}"
        )


def sizes_for(endpoint: Endpoint, largest: int | None = None) -> tuple[int, ...]:
    """One, two and four times a size; the largest is what the endpoint lets in, or what is given."""
    most = 1_048_576 if endpoint.path.startswith(("/check/batch", "/api/")) else 65_536
    most = min(most, largest or most)
    return most // 4, most // 2, most


def costs(largest: int | None = None, tries: int = TRIES) -> Iterator[Cost]:
    """Every endpoint with every body."""
    with Calling() as service:
        freeze_existing_objects()  # As a service does before it serves.
        for endpoint in service.endpoints():
            sizes = sizes_for(endpoint, largest)
            for name, make in bodies_for(endpoint):
                bodies = [make(size) for size in sizes]
                found = measured(service, endpoint, name, bodies, tries)
                for _ in range(SECOND_LOOKS):
                    if found.holds:
                        break
                    found = found.or_less(measured(service, endpoint, name, bodies, tries))
                yield found


def measured(
    service: Calling, endpoint: Endpoint, name: str, bodies: Sequence[bytes], tries: int
) -> Cost:
    """The least that each size took, of a few tries: whatever else the machine does only adds."""
    status = 0
    ms = []
    for body in bodies:
        least = float("inf")
        for attempt in range(tries):
            began = process_time()
            status = service.ask(endpoint, body).status
            least = min(least, (process_time() - began) * 1_000)
            # One look is not enough: a collection of garbage can fall into it.
            if attempt and least > 10 * ALLOWED_MS * max(1, len(body) / 65_536):
                break
        ms.append(least)
        if least > 20 * ALLOWED_MS * max(1, len(body) / 65_536):
            ms += [least] * (len(bodies) - len(ms))  # Larger ones would take minutes.
            break
    return Cost(str(endpoint), name, status, tuple(map(len, bodies)), tuple(ms))


def costs_alone(largest: int, tries: int = TRIES) -> list[Cost]:
    """`costs`, measured in a fresh process: threads of this one would be counted, too."""
    command = [sys.executable, "-m", "bench.bounds.cost", str(largest), str(tries)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    rows = json.loads(done.stdout.splitlines()[-1])
    return [Cost(**row | {"sizes": tuple(row["sizes"]), "ms": tuple(row["ms"])}) for row in rows]


if __name__ == "__main__":
    print(json.dumps([vars(one) for one in costs(*map(int, sys.argv[1:]))]))
