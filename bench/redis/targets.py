"""What Headgate promises when the state is in Redis.

Everybody is compared with the fastest of all peers, whatever that one counts: usually the least a client
of redis-py can do, one counter in one script. So our log is held against a counter, too.
"""

from __future__ import annotations

SPEED = {1: 1.2, 64: 3.5, 512: 6.5}
"""By the number of concurrent callers: that many times the decisions of the best peer."""
CEILING_SHARE = {512: 0.45}
"""At least that share of what the server could decide."""
P99_SHARE = {512: 0.1}
"""The 99th percentile is at most that share of the best peer's."""
DENIED_SPEED = 20.0
