"""A process chooses from its own traffic: monitor and selector without a board.

`headgate lab adaptive` replays through the same class.

Nothing runs in the background. The first request of a new second closes the previous seconds and chooses. Everything
counted since the last such moment belongs to that one second, so every bucket is exact.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

from .._fork import reset_after_fork
from ..algorithms.adaptive import CANDIDATES
from ..board.model import Totals
from ..board.traffic import SecondBuckets, TrafficRates, figures_of, last_seconds
from ..clock import SystemClock
from .guard import ChoosingGuard, CountingGuard
from .monitor import TrafficCount
from .selector import DEFAULT_THRESHOLDS, FIRST_CHOICE, Choice, Thresholds, select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..algorithms.adaptive import Adaptive
    from ..clock import Clock
    from ..guards.base import Guard

US_PER_SECOND: Final = 1_000_000
MAX_CHOOSERS: Final = 256
"""How many limits have a choice of their own; all others share one."""
Numbers: TypeAlias = tuple[int, int, int, str | None]
"""What tells one adaptive limit from another: limit, window and burst, and the rule that it belongs to."""


class LocalChooser(TrafficCount):
    """Chooses the variant of one `Adaptive` limit. Call `index_at` before each decision, and `add` after it."""

    __slots__ = (
        *("__weakref__", "_buckets", "_second", "_lock", "began_us", "choice", "ends_us"),
        *("index", "rates", "thresholds"),
    )

    def __init__(
        self, thresholds: Thresholds = DEFAULT_THRESHOLDS, choice: Choice = FIRST_CHOICE
    ) -> None:
        super().__init__()
        self.thresholds = thresholds
        self.choice = choice
        self.index = CANDIDATES.index(choice.algorithm)
        """Of the algorithm that decides, in `CANDIDATES`."""
        self.rates = TrafficRates(0.0, 0.0, 0.0)
        """Rates of the last ten seconds."""
        self.began_us = self.ends_us = 0
        """The second for which `index` holds; a hot path compares them itself, and calls `end_second` outside of it."""
        self._buckets = SecondBuckets()
        self._second = -1
        self._lock = Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Called in a child: another thread may have held the lock."""
        self._lock = Lock()

    def index_at(self, now_us: int) -> int:
        """The variant to ask now."""
        if not self.began_us <= now_us < self.ends_us:
            self.end_second(now_us)
        return self.index

    def end_second(self, now_us: int) -> None:
        """A new second has begun: close the previous ones, and choose."""
        with self._lock:
            second, totals = now_us // US_PER_SECOND, Totals(self.requests, self.denied)
            if second == self._second:
                return  # Another thread was faster.
            if second > self._second >= 0:
                self._buckets.note(totals, self._second)
                self._buckets.note(totals, second - 1)  # Nothing happened in between.
            else:  # The first of all, or the clock has stepped back.
                self._buckets.begin(totals, second - 1)
            self._second = second
            self.rates = figures_of(last_seconds([self._buckets.strip()], second - 1))
            self.began_us = second * US_PER_SECOND
            self.ends_us = self.began_us + US_PER_SECOND
            self.choose(select(self.choice, self.rates, now_us, self.thresholds))

    def choose(self, choice: Choice) -> None:
        """Use this choice from now on."""
        self.choice, self.index = choice, CANDIDATES.index(choice.algorithm)


class LocalAdaptive:
    """The choices of one process: one per adaptive limit, or per rule with an adaptive limit."""

    def __init__(
        self, *, thresholds: Thresholds = DEFAULT_THRESHOLDS, clock: Clock | None = None
    ) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        self._thresholds = thresholds
        self._choosers: dict[Numbers, LocalChooser] = {}
        self._shared = LocalChooser(thresholds)

    def guards(self) -> Sequence[Guard]:
        """See `Choices.guards`."""
        return [CountingGuard(self), ChoosingGuard(self)]

    def choice(self, limit: Adaptive, rule: str | None = None) -> Choice:
        """Which algorithm decides for this limit, since when and why."""
        return self.chosen(limit, rule).choice

    def chosen(self, limit: Adaptive, rule: str | None) -> LocalChooser:
        """See `Choices.chosen`."""
        numbers = (limit.limit, limit.window_us, limit.burst, rule)
        known = self._choosers.get(numbers)
        if known is None:
            if len(self._choosers) >= MAX_CHOOSERS:
                return self._shared
            known = self._choosers.setdefault(numbers, LocalChooser(self._thresholds))
        return known

    counter = chosen
    """See `CountedChoices.counter`: the chooser also counts."""

    def on_ask(self, limit: Adaptive, rule: str | None) -> Callable[[str, int], None]:
        """See `CountedChoices.on_ask`: the first request of a second starts it."""
        chooser, now_us = self.chosen(limit, rule), self.clock.now_us

        def on_ask(_key: str, _cost: int) -> None:
            at_us = now_us()
            if not chooser.began_us <= at_us < chooser.ends_us:
                chooser.end_second(at_us)

        return on_ask
