"""What Headgate promises, and whom each algorithm is compared with.

Nobody else has a backoff or an adaptive limit. Those two are held against what comes closest to how
they count: the fixed windows for the backoff, the sliding ones for adaptive, which starts with that test.
`limits` has no bucket, so there it is represented by its fixed window, its fastest.
"""

from __future__ import annotations

from dataclasses import dataclass

FIXED_WINDOWS = ("limits fixed", "throttled fixed", "pyrate fixed")
SLIDING_WINDOWS = ("limits sliding", "throttled sliding", "pyrate log")
LOGS = ("limits moving", "pyrate log")
BUCKETS = ("throttled token", "throttled gcra", "throttled leaking", "pyrate gcra")

CLOSEST = {
    "fixed_window": FIXED_WINDOWS,
    "sliding_window": SLIDING_WINDOWS,
    "sliding_log": LOGS,
    "token_bucket": BUCKETS,
    "exponential_backoff": FIXED_WINDOWS,
    "adaptive": SLIDING_WINDOWS,
}
"""The peers that each algorithm is compared with."""

WITHOUT_EQUAL = ("exponential_backoff", "adaptive")

LIMITS = {
    "fixed_window": "limits fixed",
    "sliding_window": "limits sliding",
    "sliding_log": "limits moving",
    "token_bucket": "limits fixed",
    "exponential_backoff": "limits fixed",
    "adaptive": "limits sliding",
}
"""The strategy of `limits` that each algorithm is compared with."""

MAX_BYTES_PER_KEY = {"token_bucket": 200}
MAX_BOUND = {"limit.hit": 1.3, "acquire": 2.5, "with": 2.5}
"""What a limit that is bound to its key may take, in units of a plain hit."""
MAX_ASYNC = 1.5
"""An awaited hit may take that many times as long as a plain one."""


@dataclass(frozen=True)
class Target:
    """`times` the speed of somebody."""

    times: float
    of: str
    """`limits`, or `best peer`."""

    def __str__(self) -> str:
        return f"{self.times:g}x {self.of}"


HOT = {
    algorithm: Target(3, "limits") if algorithm == "fixed_window" else Target(4, "best peer")
    for algorithm in CLOSEST
}
MANY_KEYS = dict.fromkeys(CLOSEST, Target(5, "best peer"))
WHOLE_ANSWER = dict.fromkeys(("fixed_window", "sliding_window", "sliding_log"), Target(6, "limits"))
THREE_CHARGES = dict.fromkeys(
    ("fixed_window", "sliding_window", "token_bucket"), Target(3, "limits")
)
