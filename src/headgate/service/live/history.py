"""The last fifteen minutes, second by second, and which algorithm decided when. Pure; its size never changes.

A second of which nothing is known is `None`, never zero.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...adaptive import Choice
    from ...board import Second

KEPT: Final = 900
MAX_SWITCHES: Final = 200


class SecondSeen(NamedTuple):
    """What is kept of a second."""

    allowed: int
    denied: int
    p99_us: int | None = None
    burst_ratio: float | None = None


class LiveHistory:
    """What was seen."""

    def __init__(self) -> None:
        self._seen: dict[int, SecondSeen] = {}
        self._alone: deque[list[int]] = deque(maxlen=KEPT)
        self._last = 0

    def note(
        self, seconds: Iterable[Second], p99_us: int | None, burst_ratio: float, *, alone: bool
    ) -> None:
        """Take in the last seconds, the oldest first; what was known of them may be corrected.

        What is measured over ten seconds belongs to the last of them.
        """
        for one in seconds:
            known = self._seen.get(one.at)
            measured = (None, None) if known is None else (known.p99_us, known.burst_ratio)
            self._seen[one.at] = SecondSeen(one.requests - one.denied, one.denied, *measured)
            self._last = max(self._last, one.at)
        newest = self._seen.get(self._last)
        if newest is None:
            return
        self._seen[self._last] = newest._replace(p99_us=p99_us, burst_ratio=round(burst_ratio, 2))
        if alone:
            self._note_alone(self._last)
        for at in [at for at in self._seen if at <= self._last - KEPT]:
            del self._seen[at]

    def _note_alone(self, at: int) -> None:
        if self._alone and at - self._alone[-1][1] <= 2:
            self._alone[-1][1] = at + 1
        else:
            self._alone.append([at, at + 1])

    @property
    def begins(self) -> int:
        """The first second that is told of."""
        return max(min(self._seen, default=self._last), self._last - KEPT + 1)

    def frame(self) -> dict[str, Any]:
        """As the feed tells it."""
        begins = self.begins
        seen = [self._seen.get(at) for at in range(begins, self._last + 1)]
        columns = {
            name: [None if one is None else getattr(one, name) for one in seen]
            for name in SecondSeen._fields
        }
        alone = [span for span in self._alone if span[1] > begins]
        return {"from": begins, **columns, "alone": alone}


class Switches:
    """Who decided since when, the oldest first; the first one decided at the beginning."""

    def __init__(self) -> None:
        self._switches: deque[dict[str, Any]] = deque(maxlen=MAX_SWITCHES)
        self._choice: Choice | None = None

    def note(self, choice: Choice, began: float) -> dict[str, Any] | None:
        """This one decides now, or since it all began; what is new about that, if anything is."""
        before = self._choice
        if before is not None and before.epoch == choice.epoch:
            return None
        self._choice = choice
        at = choice.since_us / 1_000_000 if choice.since_us else began
        switch = {
            "at": at,
            "scope": "*",
            "from": None if before is None else before.algorithm,
            "to": choice.algorithm,
            "epoch": choice.epoch,
            "reason": choice.reason,
            "pinned_by": choice.pinned_by or None,
        }
        self._switches.append(switch)
        return None if before is None else switch

    def frame(self, begins: float) -> list[dict[str, Any]]:
        """Those since a moment, and the one that decided then."""
        switches = list(self._switches)
        first = max((at for at, one in enumerate(switches) if one["at"] <= begins), default=0)
        return [one | {"from": None} if at == first else one for at, one in enumerate(switches)][
            first:
        ]
