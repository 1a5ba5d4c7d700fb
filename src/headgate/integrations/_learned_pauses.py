"""How long to pause calls to an API, from the rate limit headers of its responses. Pure.

It understands `Retry-After` (seconds or a date), `RateLimit` of the IETF drafts (`"burst";r=0;t=30`, and the older
`limit=10, remaining=0, reset=30` with `RateLimit-Remaining` and `RateLimit-Reset`), and `X-RateLimit-Remaining` with
`X-RateLimit-Reset` as seconds to go or as a moment. Moments are read by the other side's own clock (`Date`).
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PAUSE_S: Final = 3_600.0
"""Longer pauses are cut to this: a server that is wrong must not stop a client forever."""
REFUSED: Final = frozenset({429, 503})
MOMENT_S: Final = 1_000_000_000
"""A reset of at least this many seconds is a time since 1970, not a duration."""
MOMENT_MS: Final = 1_000_000_000_000
_R: Final = re.compile(r";\s*r\s*=\s*(\d{1,15})")
_T: Final = re.compile(r";\s*t\s*=\s*(\d{1,15})")
_OLDER: Final = re.compile(r"(remaining|reset)\s*=\s*(\d{1,15})")


def pause_s(status: int, headers: Mapping[str, str], now_s: float) -> float:
    """Seconds to pause, according to a response; 0 if it does not ask for a pause. `headers` is case-insensitive."""
    their_now_s = _moment_s(headers.get("date")) or now_s
    found = max(_by_lists(headers), _by_pairs(headers, their_now_s))
    if status in REFUSED:
        found = max(found, _retry_after_s(headers.get("retry-after"), their_now_s))
    return min(found, MAX_PAUSE_S)


def _retry_after_s(text: str | None, now_s: float) -> float:
    if text is None:
        return 0.0
    number = _number(text)
    if number is not None:
        return number
    moment_s = _moment_s(text)
    return 0.0 if moment_s is None else max(0.0, moment_s - now_s)


def _by_lists(headers: Mapping[str, str]) -> float:
    """`RateLimit`: the longest of the policies that have nothing left."""
    text = headers.get("ratelimit", "")[:4_096]
    longest = 0.0
    for policy in text.split(","):
        left, again = _R.search(policy), _T.search(policy)
        if left is not None and again is not None and int(left[1]) == 0:
            longest = max(longest, float(again[1]))
    older = dict(_OLDER.findall(text))
    if older.get("remaining") == "0":
        longest = max(longest, float(older.get("reset", 0)))
    return longest


def _by_pairs(headers: Mapping[str, str], now_s: float) -> float:
    """`X-RateLimit-Remaining: 0` and `X-RateLimit-Reset`, also without the `X-`."""
    longest = 0.0
    for prefix in ("x-ratelimit", "ratelimit"):
        reset = _number(headers.get(f"{prefix}-reset"))
        if reset is None or _number(headers.get(f"{prefix}-remaining")) != 0:
            continue
        if reset >= MOMENT_MS:
            reset /= 1_000
        longest = max(longest, reset - now_s if reset >= MOMENT_S else reset)
    return longest


def _number(text: str | None) -> float | None:
    """A plain number that is not negative; `None` for anything else."""
    stripped = "" if text is None else text.strip()
    if not re.fullmatch(r"\d{1,15}(\.\d{1,9})?", stripped):
        return None
    return float(stripped)


def _moment_s(text: str | None) -> float | None:
    """A date as HTTP writes it, in seconds since 1970."""
    try:
        return None if not text else parsedate_to_datetime(text[:64]).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
