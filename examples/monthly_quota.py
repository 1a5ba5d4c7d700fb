"""A plan of 1000 requests a month that begins on the 15th, by the clocks of Berlin.

Prints:

    14 February, 23:00: 0 of 1000 left, 1.0 h until the next month begins
    15 February, 00:00: 999 of 1000 left, 672.0 h until the next month begins
"""

from datetime import datetime
from zoneinfo import ZoneInfo

from headgate import Limiter
from headgate.testing import ManualClock

BERLIN = ZoneInfo("Europe/Berlin")
PLAN = "1000/calendar month in Europe/Berlin anchor 15"

clock = ManualClock(datetime(2027, 2, 14, 23, 0, tzinfo=BERLIN).timestamp())
limiter = Limiter(clock=clock)

for cost in (1000, 1):
    decision = limiter.hit("org:7", PLAN, cost=cost)
    now = datetime.fromtimestamp(clock.now_us() / 1_000_000, BERLIN)
    print(
        f"{now:%d %B, %H:%M}: {decision.remaining} of {decision.limit} left, "
        f"{decision.reset_after / 3600} h until the next month begins"
    )
    clock.advance(3600)
