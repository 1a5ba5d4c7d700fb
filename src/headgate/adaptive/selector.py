"""Chooses the algorithm that suits the traffic: pure, with hysteresis.

    abuse   many are denied and many ask   exponential backoff
    burst   one second stands out          token bucket
    else                                   sliding window

Abuse is tested before burst. Each choice is entered above one threshold and left below a lower one, and stands for a
minimum time (`dwell_us`), so traffic around a threshold changes the algorithm at most once in that time. Every choice
states its reason, and has an epoch: a number that grows with each choice, so nodes know which one is newer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms import ExponentialBackoff, SlidingWindow, TokenBucket
from ..algorithms.adaptive import CANDIDATES
from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..board.traffic import TrafficRates

WINDOW: Final = SlidingWindow.name
BUCKET: Final = TokenBucket.name
BACKOFF: Final = ExponentialBackoff.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a choice is entered, and when it is left."""

    enter_burst_ratio: float = 3.0
    leave_burst_ratio: float = 1.5
    enter_deny_rate: float = 0.5
    """Between 0 and 1, as is `leave_deny_rate`."""
    leave_deny_rate: float = 0.3
    enter_abuse_rate: float = 20.0
    """Requests a second. Backoff is entered above this and `enter_deny_rate`, and left below one of the others."""
    leave_abuse_rate: float = 10.0
    dwell_us: int = 5_000_000
    """The least time for which a choice stands."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"{one.name} must be a number, not {value!r:.40}", one.name)
            if not (isfinite(value) and value >= 0):
                raise UsageError(f"{one.name} must be 0 or more, not {value!r:.40}", one.name)
        if not isinstance(self.dwell_us, int):
            raise UsageError(
                f"dwell_us must be a whole number of microseconds, not {self.dwell_us!r:.40}",
                "dwell_us",
            )
        for name in ("burst_ratio", "deny_rate", "abuse_rate"):
            enter, leave = getattr(self, f"enter_{name}"), getattr(self, f"leave_{name}")
            if leave > enter:
                raise UsageError(
                    f"leave_{name} ({leave:g}) is above enter_{name} ({enter:g}); "
                    "the algorithm would flap",
                    f"leave_{name}",
                )
        if self.enter_deny_rate > 1:
            raise UsageError(
                f"enter_deny_rate must be between 0 and 1, not {self.enter_deny_rate:g}",
                "enter_deny_rate",
            )


DEFAULT_THRESHOLDS: Final = Thresholds()


def thresholds_of(settings: Iterable[str]) -> Thresholds:
    """Thresholds as people write them: `enter_burst_ratio=4`, and `dwell=10` in seconds.

    >>> thresholds_of(["enter_burst_ratio=4", "dwell=10"]).dwell_us
    10000000
    """
    known = {one.name for one in fields(Thresholds)} - {"dwell_us"} | {"dwell"}
    found: dict[str, float] = {}
    for written in settings:
        name, _, value = (part.strip() for part in written.partition("="))
        if name not in known:
            raise UsageError(
                f"there is no threshold {name!r:.40}; use one of {', '.join(sorted(known))}"
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{name} must be a number, not {value!r:.40}") from None
    dwell = found.pop("dwell", DEFAULT_THRESHOLDS.dwell_us / 1_000_000)
    if not 0 <= dwell <= 86_400:
        raise UsageError(f"dwell must be between 0 and 86400 seconds, not {dwell:g}")
    return Thresholds(**found, dwell_us=round(dwell * 1_000_000))


class Choice(NamedTuple):
    """Which algorithm decides, since when, and why."""

    epoch: int = 0
    """Grows by one with every choice; 0 for the initial one."""
    algorithm: str = WINDOW
    since_us: int = 0
    reason: str = "no traffic has called for another algorithm yet"
    pinned_by: str = ""
    """Who has pinned it. While it is pinned, traffic changes nothing."""
    pinned_until_us: int = 0
    """When the pin ends; 0 if it stays."""

    @property
    def pinned(self) -> bool:
        """Whether a person has pinned it."""
        return bool(self.pinned_by)


FIRST_CHOICE: Final = Choice()


def select(
    current: Choice,
    rates: TrafficRates,
    now_us: int,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> Choice:
    """The choice for this traffic: `current` itself, or one with the next epoch."""
    if current.pinned:
        over = 0 < current.pinned_until_us <= now_us
        return unpin(current, now_us) if over else current
    if _dwells(current, now_us, thresholds.dwell_us):
        return current
    wanted = _wanted(current.algorithm, rates, thresholds)
    if wanted == current.algorithm:
        return current
    reason = _reason(current.algorithm, wanted, rates, thresholds)
    return Choice(current.epoch + 1, wanted, now_us, reason)


def pin(
    current: Choice, algorithm: str, now_us: int, by: str, reason: str = "", *, until_us: int = 0
) -> Choice:
    """A person's choice, which stands until `until_us` or until it is unpinned."""
    if algorithm not in CANDIDATES:
        raise UsageError(f"adaptive chooses between {', '.join(CANDIDATES)}, not {algorithm!r:.40}")
    if not by:
        raise UsageError("a pin needs a name: who pins the algorithm")
    said = f"pinned by {by}: {reason}" if reason else f"pinned by {by}"
    return Choice(current.epoch + 1, algorithm, now_us, said, by, until_us)


def unpin(current: Choice, now_us: int) -> Choice:
    """Let the traffic decide again. The pinned algorithm stays for the dwell time, like any other choice."""
    if not current.pinned:
        return current
    reason = f"no longer pinned by {current.pinned_by}"
    return Choice(current.epoch + 1, current.algorithm, now_us, reason)


def _dwells(current: Choice, now_us: int, dwell_us: int) -> bool:
    """Whether it is too early for another choice.

    Clocks of nodes differ a little, so a choice may be from the near future: it counts as new. One from further ahead
    than the dwell time was made before the clock stepped back, and must not stand for as long as that step.
    """
    return current.epoch > 0 and abs(now_us - current.since_us) < dwell_us


def _wanted(algorithm: str, rates: TrafficRates, thresholds: Thresholds) -> str:
    if algorithm == BACKOFF:
        abuse = (
            rates.deny_rate >= thresholds.leave_deny_rate
            and rates.req_per_sec >= thresholds.leave_abuse_rate
        )
    else:
        abuse = (
            rates.deny_rate > thresholds.enter_deny_rate
            and rates.req_per_sec > thresholds.enter_abuse_rate
        )
    if abuse:
        return BACKOFF
    if algorithm == BUCKET:
        burst = rates.burst_ratio >= thresholds.leave_burst_ratio
    else:
        burst = rates.burst_ratio > thresholds.enter_burst_ratio
    return BUCKET if burst else WINDOW


def _reason(before: str, wanted: str, rates: TrafficRates, thresholds: Thresholds) -> str:
    if wanted == BACKOFF:
        return (
            f"{rates.deny_rate:.0%} of {rates.req_per_sec:.1f} requests/s denied, "
            f"above {thresholds.enter_deny_rate:.0%} and {thresholds.enter_abuse_rate:g}/s"
        )
    over = _abuse_over(rates, thresholds) if before == BACKOFF else ""
    if wanted == BUCKET:
        burst = (
            f"the busiest second had {rates.burst_ratio:.1f} times the mean, "
            f"above {thresholds.enter_burst_ratio:g}"
        )
        return f"{over}; {burst}" if over else burst
    if over:
        return over
    if not rates.burst_ratio:
        return "too few requests to detect a burst"
    return (
        f"the burst ratio fell to {rates.burst_ratio:.1f}, below {thresholds.leave_burst_ratio:g}"
    )


def _abuse_over(rates: TrafficRates, thresholds: Thresholds) -> str:
    if rates.req_per_sec < thresholds.leave_abuse_rate:
        return f"{rates.req_per_sec:.1f} requests/s, below {thresholds.leave_abuse_rate:g}/s"
    return f"{rates.deny_rate:.0%} denied, below {thresholds.leave_deny_rate:.0%}"
