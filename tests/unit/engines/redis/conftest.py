"""What the tests of the Redis engine share."""

import pytest

from headgate.testing import ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands at a full hour."""
    return ManualClock(1_800_000_000.0)
