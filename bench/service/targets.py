"""What the service promises beside its peers, all headers included, one core each."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """`ours` answers at least `times` as many requests a second as `than`."""

    scenario: str
    ours: str
    than: str
    times: float


TARGETS = (
    Target("check, memory", "headgate", "FastAPI", 7.0),
    Target("check, memory", "headgate", "Go net/http", 1.3),
    Target("check, memory", "headgate, compiled", "Go net/http", 1.3),
    Target("check, Redis", "headgate on Redis", "FastAPI on Redis", 10.0),
    Target("batch of 100, memory", "headgate", "Go net/http", 1.0),
    Target("batch of 100, memory", "headgate, compiled", "Go net/http", 1.0),
    Target("adaptive check, memory", "headgate, adaptive", "headgate", 0.75),
    Target("adaptive check, memory", "headgate, adaptive, compiled", "headgate, compiled", 0.75),
    Target("adaptive check, Redis", "headgate on Redis, adaptive", "headgate on Redis", 0.75),
)
ORIGINAL = {
    "one node": (561.0, 314.0),
    "three nodes behind nginx": (1_000.0, 75.0),
}
"""Requests a second and 95th percentile in ms, as the design's author measured them with 300 users."""
