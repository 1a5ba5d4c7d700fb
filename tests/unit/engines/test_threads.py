"""Never more than the limit on the real clock, whatever threads do around the ends of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import Limiter, MemoryEngine
from headgate.charge import Charge, ChargeSet
from tests.unit.engines.threads import LIMITS, hammered, most

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate import Limit

SECONDS = 0.4


def named(limit: Limit) -> str:
    return f"{limit.name} {getattr(limit, 'chosen', '')}".strip()


def bound(engine: MemoryEngine, limit: Limit) -> Callable[[], object]:
    hit = engine.bind(limit)
    return lambda: hit("key", 1)


def in_a_run(engine: MemoryEngine, limit: Limit) -> Callable[[], object]:
    run = engine.bind_run(limit)
    return lambda: run(["key"], 1).answers[0][0]


def decided(engine: MemoryEngine, limit: Limit) -> Callable[[], object]:
    """Two charges, so that the second denies while the first fits."""
    request = ChargeSet((Charge("other", limit, 0), Charge("key", limit)))
    return lambda: engine.decide([request])[0]


def by_the_limiter(engine: MemoryEngine, limit: Limit) -> Callable[[], object]:
    limiter = Limiter(engine)
    return lambda: limiter.hit("key", limit)


@pytest.mark.parametrize(
    "way", [bound, in_a_run, decided, by_the_limiter], ids=lambda way: way.__name__
)
@pytest.mark.parametrize("limit", LIMITS, ids=named)
def test_threads_get_no_more_than_the_limit(
    limit: Limit, way: Callable[[MemoryEngine, Limit], Callable[[], object]]
) -> None:
    """A clock that is read before the lock is taken would be old by then, and its window over."""
    engine = MemoryEngine()
    hit = way(engine, limit)
    from_us = engine.clock.now_us()
    given = hammered(hit, SECONDS)
    allowed = most(limit, from_us, engine.clock.now_us())
    assert given <= allowed
    assert given > 0
