"""A caller who does not listen: the limit halves while the hammering goes on, and recovers in silence.

Prints:

    minute 0: 100 hits, 16 passed, level 5
    minute 1: 100 hits, 1 passed, level 5
    minute 2: 0 hits, 0 passed, level 5
    minute 3: 0 hits, 0 passed, level 4
    minute 4: 2 hits, 2 passed, level 3
"""

from headgate import Limiter
from headgate.testing import ManualClock

clock = ManualClock()
limiter = Limiter(clock=clock)
bot = limiter.limit("bot", "16/minute", algorithm="exponential_backoff")

for minute, hits in enumerate((100, 100, 0, 0, 2)):
    passed = 0
    for _ in range(hits):
        passed += bot.hit().allowed
        clock.advance(us=1_000)
    level = bot.check().backoff_level
    print(f"minute {minute}: {hits} hits, {passed} passed, level {level}")
    clock.advance(60 - hits / 1_000)
