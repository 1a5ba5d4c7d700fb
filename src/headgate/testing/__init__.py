"""Test tools, for programs that use Headgate and for engines.

`ManualClock` makes waiting instant and exact. The conformance suite, in `headgate.testing.conformance`,
tells whether an engine gives the right answers; it needs pytest.
"""

from ..clock import ManualClock
from .blocking import Blocking
from .story import Story, all_stories, replay

__all__ = ["Blocking", "ManualClock", "Story", "all_stories", "replay"]
