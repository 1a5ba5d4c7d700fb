"""A world of regions: events in order of time, and a network that delays, reorders, loses and repeats messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from .sometimes import RegionSometimes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from random import Random

REGIONS: Final = ("east", "north", "west")
START_US: Final = 1_700_000_000_000_000


@dataclass(eq=False)
class RegionWorld:
    """Time, randomness and the network."""

    rng: Random
    reached: Counter[RegionSometimes]
    now_us: int = START_US
    lost: float = 0.0
    """The probability that a message is lost."""
    doubled: float = 0.0
    """The probability that it arrives twice."""
    deadly: float = 0.0
    """The probability that a node dies between two steps."""
    delay_us: tuple[int, int] = (40_000, 80_000)
    cut: set[frozenset[str]] = field(default_factory=set)
    """Pairs of regions that cannot reach each other."""
    faults: list[str] = field(default_factory=list)
    _events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def at(self, us: int, act: Callable[[], None]) -> None:
        """Schedule something for that time."""
        heappush(self._events, (max(us, self.now_us), next(self._numbers), act))

    def later(self, low_us: int, high_us: int, act: Callable[[], None]) -> None:
        """Schedule something after a random delay."""
        self.at(self.now_us + self.rng.randint(low_us, high_us), act)

    def run(self, until_us: int) -> None:
        """Run all events until then."""
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, act = heappop(self._events)
            act()
        self.now_us = until_us

    def send(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        """Deliver a message from one region to another; it may arrive late, twice or never."""
        pair = frozenset((sender, receiver))
        times = 2 if self.rng.random() < self.doubled else 1
        for _ in range(times):
            if pair in self.cut or self.rng.random() < self.lost:
                self.reached[RegionSometimes.LOST] += 1
                continue
            # Duplicates are often late as well.
            slow = 20 if self.rng.random() < self.doubled else 1
            low_us, high_us = self.delay_us
            self.later(low_us, high_us * slow, lambda: self._arrived(pair, arrive))
        if times > 1:
            self.reached[RegionSometimes.DOUBLED] += 1

    def heal(self) -> None:
        """Deliver every message once from now on."""
        self.cut.clear()
        self.lost = self.doubled = self.deadly = 0.0

    def _arrived(self, pair: frozenset[str], arrive: Callable[[], None]) -> None:
        if pair in self.cut:
            self.reached[RegionSometimes.LOST] += 1
        else:
            arrive()
