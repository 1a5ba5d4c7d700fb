"""The circuit breaker: detects when a store cannot be reached, so that callers do not wait for it.

There is one per store, shared by all limits. It is pure: callers of the store report the result of each call, and the
recovery (`recovery.py`) reports the results of its probes.

- **Closed**: calls go to the store. A timeout and another failure with no answer in between open it, and so do failures
  of any kind, if at least half of five or more calls fail within 100 ms, or within four deadlines if that is longer. An
  answer that comes much later than the deadline, from an engine that does not enforce it, counts as a timeout. After
  the first timeout only one call at a time is let through, so that callers do not queue behind a late call.
- **Open**: no call goes to the store. One probe at a time checks whether it is back; no caller waits for a probe.
- It closes after three good probes in a row, so a store that comes and goes does not make it flap.

A permanent error (`transient` is false) is about a request or the configuration, and does not open it. Neither does
`EngineBusy`, which is about this process: the store answers all that it is sent.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from ..errors import EngineBusy, EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from ..errors import EngineError

NS_PER_SECOND: Final = 1_000_000_000
WINDOW_NS: Final = 100_000_000
DEADLINES: Final = 4
"""The window holds at least so many deadlines: calls that time out take that long to fail."""
FEWEST_CALLS: Final = 5
GOOD_PROBES: Final = 3
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 0.25


class Breaker:
    """Decides whether calls go to the store."""

    def __init__(self, clock: Clock, deadline: float, *, keeps_deadline: bool = True) -> None:
        self.clock = clock
        """The clock that times calls."""
        self.ticks = clock.ticks
        self._keeps_deadline = keeps_deadline
        self.calm = False
        """Whether all is well: calls may skip `ask`, and answers may skip `answered`.

        A plain attribute, because the hot path reads it.
        """
        self._deadline_ns = round(deadline * NS_PER_SECOND)
        self._window_ns = max(WINDOW_NS, DEADLINES * self._deadline_ns)
        self.is_open = False
        self.problem = ""
        """The store's last error."""
        self.opened_ns = 0
        """When it last opened."""
        self.openings = 0
        """How often it has opened."""
        self.recoveries: set[object] = set()
        """What has begun to recover and has not ended; until then it is not calm."""
        self.on_change: Callable[[], None] | None = None
        """Called after the breaker opens or closes."""
        self._answered = False
        self._timeouts = 0
        self._trial_ends_ns = 0
        self._window_ends_ns = 0
        self._calls = self._failures = 0
        self._chance = random.Random(random.random())
        """A private generator: probes run in a background thread and must not disturb the program's random numbers."""
        self._good_probes = 0
        self._pause_s = FIRST_PAUSE_S

    def ask(self) -> int:
        """The start time of a call to the store, for `answered` and `failed`; 0 if the call is not allowed."""
        if self.is_open:
            return 0
        now_ns = self.ticks()
        if self._timeouts:
            if now_ns < self._trial_ends_ns:
                return 0
            self._trial_ends_ns = now_ns + self._deadline_ns
        return now_ns

    def answered(self, asked_ns: int) -> None:
        """Record that the store answered this call."""
        now_ns = self.ticks()
        late = not self._keeps_deadline and now_ns - asked_ns > 2 * self._deadline_ns
        if late and self._answered:
            self._timed_out("it answers after the deadline", now_ns)
            return
        self._calls += 1
        self._answered = True
        self._timeouts = 0
        quiet = now_ns >= self._window_ends_ns and not (self.is_open or self.recoveries)
        self.calm = self._keeps_deadline and quiet

    def failed(self, asked_ns: int, error: EngineError) -> None:
        """Record that this call failed."""
        if not error.transient or error.partial or self.is_open or isinstance(error, EngineBusy):
            return
        self.calm = False
        now_ns = self.ticks()
        late = isinstance(error, EngineTimeout) or now_ns - asked_ns >= self._deadline_ns
        if late or self._timeouts:
            self._timed_out(str(error), now_ns)
        else:
            self._count_failure(str(error), now_ns)

    def pause_s(self) -> float:
        """How long to wait before the next probe; random, so that nodes do not probe in step."""
        return self._pause_s * self._chance.uniform(0.75, 1.0)

    def probed(self, *, good: bool) -> bool:
        """Record the result of a probe; returns whether enough good ones have come in a row to close."""
        if good:
            self._good_probes += 1
            self._pause_s = FIRST_PAUSE_S
        else:
            self._good_probes = 0
            self._pause_s = min(1.5 * self._pause_s, LAST_PAUSE_S)
        return self._good_probes >= GOOD_PROBES

    def close(self) -> None:
        """Let calls through again: the store is back."""
        if self.is_open:
            self._timeouts = self._calls = self._failures = 0
            self.is_open = False
            self._notify()

    def _timed_out(self, problem: str, now_ns: int) -> None:
        self._timeouts += 1
        self._trial_ends_ns = 0
        if self._timeouts >= 2:
            self._open(problem)
        else:
            self._count_failure(problem, now_ns)

    def _count_failure(self, problem: str, now_ns: int) -> None:
        if now_ns >= self._window_ends_ns:
            self._window_ends_ns = now_ns + self._window_ns
            self._calls = self._failures = 0
        self._calls += 1
        self._failures += 1
        if self._calls >= FEWEST_CALLS and 2 * self._failures >= self._calls:
            self._open(problem)

    def _open(self, problem: str) -> None:
        if self.is_open:
            return
        self.problem = problem
        self.opened_ns = self.ticks()
        self.openings += 1
        self._good_probes, self._pause_s = 0, FIRST_PAUSE_S
        self.is_open, self.calm = True, False
        self._notify()

    def _notify(self) -> None:
        if self.on_change is not None:
            self.on_change()
