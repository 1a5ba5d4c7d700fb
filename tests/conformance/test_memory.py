"""The memory engine passes the suite that every engine must pass, called directly and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import MemoryEngine
from headgate.engines.base import Awaited
from headgate.testing import Blocking
from headgate.testing.conformance import EngineConformance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from headgate.testing import ManualClock


class TestMemoryEngine(EngineConformance):
    """Called directly."""

    @pytest.fixture
    def engine(self, clock: ManualClock) -> Engine:
        return MemoryEngine(clock=clock)


class TestAwaitedMemoryEngine(EngineConformance):
    """Called from an event loop."""

    programs = 20

    @pytest.fixture
    def engine(self, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(Awaited(MemoryEngine(clock=clock)))
        yield engine
        engine.close()


class TestReloadedMemoryEngine(EngineConformance):
    """With small generations, so that states move between them all the time."""

    @pytest.fixture
    def engine(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Engine:
        monkeypatch.setattr("headgate.engines._state_table.MIN_TURN_US", 1)
        monkeypatch.setattr("headgate.engines._state_store.SWEEP_PER_KEY", 1)
        return MemoryEngine(clock=clock)
