"""Replay traffic through monitor and selector in virtual time: which algorithm decides when, and why. Pure.

The parts are the real ones: the library's chooser, and the three variants of the `Adaptive` limit with one state per
key. The same traffic also runs through each candidate alone, to show the gain of choosing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..adaptive.local import LocalChooser
from ..adaptive.selector import DEFAULT_THRESHOLDS
from ..algorithms.adaptive import CANDIDATES, Adaptive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..adaptive.selector import Choice, Thresholds
    from ..algorithms import Limit
    from ..board.traffic import TrafficRates
    from .traffic_shapes import Arrival, Shape

US_PER_SECOND: Final = 1_000_000
BEGIN_US: Final = 1_800_000_000 * US_PER_SECOND
"""When every replay begins: the start of a minute and of an hour."""


class ReplayedSecond(NamedTuple):
    """The figures of one second."""

    allowed: int
    denied: int
    rates: TrafficRates
    """As known when the second began."""


@dataclass(slots=True)
class TrafficReplay:
    """The result of a replay."""

    shape: Shape
    limit: Adaptive
    thresholds: Thresholds
    seconds: list[ReplayedSecond] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    """All choices, starting with the initial one; `since_us` counts from the beginning."""
    alone: dict[str, int] = field(default_factory=dict)
    """The number of requests that each candidate would have admitted alone."""

    @property
    def allowed(self) -> int:
        """The number of admitted requests."""
        return sum(one.allowed for one in self.seconds)

    @property
    def denied(self) -> int:
        """The number of denied requests."""
        return sum(one.denied for one in self.seconds)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "traffic": self.shape.title,
            "seconds": self.shape.seconds,
            "requests": len(self.shape.arrivals),
            "allowed": self.allowed,
            "denied": self.denied,
            "choices": [
                {
                    "at": one.since_us / US_PER_SECOND,
                    "epoch": one.epoch,
                    "algorithm": one.algorithm,
                    "reason": one.reason,
                }
                for one in self.choices
            ],
            "allowed_by_each_alone": self.alone,
        }


def replay(
    shape: Shape, limit: Adaptive, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> TrafficReplay:
    """Replay this traffic against the limit, starting without any state."""
    variants = [Adaptive(limit.limit, limit.window_us, limit.burst, name) for name in CANDIDATES]
    chooser, states = LocalChooser(thresholds), dict[str, Any]()
    result = TrafficReplay(shape, limit, thresholds, choices=[chooser.choice])
    arrivals, at = shape.arrivals, 0
    for second in range(max(1, -int(-shape.seconds // 1))):
        end_us = (second + 1) * US_PER_SECOND
        chooser.end_second(BEGIN_US + second * US_PER_SECOND)  # Also without requests.
        if chooser.choice.epoch != result.choices[-1].epoch:
            since_us = chooser.choice.since_us - BEGIN_US
            result.choices.append(chooser.choice._replace(since_us=since_us))
        rates, requests, denied = chooser.rates, chooser.requests, chooser.denied
        while at < len(arrivals) and arrivals[at].at_us < end_us:
            at_us, key, cost = arrivals[at]
            now_us = BEGIN_US + at_us
            variant = variants[chooser.index_at(now_us)]
            states[key], answer = variant.take(states.get(key), now_us, cost)
            chooser.add(allowed=answer[0])
            at += 1
        refused = chooser.denied - denied
        result.seconds.append(ReplayedSecond(chooser.requests - requests - refused, refused, rates))
    result.alone = {one.name: admitted_by(one, arrivals) for one in limit.candidates}
    return result


def admitted_by(limit: Limit, arrivals: Iterable[Arrival]) -> int:
    """The number of these requests that a limit admits alone."""
    states, admitted = dict[str, Any](), 0
    for at_us, key, cost in arrivals:
        states[key], answer = limit.take(states.get(key), BEGIN_US + at_us, cost)
        admitted += answer[0]
    return admitted
