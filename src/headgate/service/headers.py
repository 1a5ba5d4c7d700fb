"""What a decision looks like in HTTP headers. The one place that knows the revision of the IETF draft.

`RateLimit` and `RateLimit-Policy` are written as in draft-ietf-httpapi-ratelimit-headers-11 (the syntax has been the same since -08):
lists of quoted policy names with parameters. `X-RateLimit-*` is the older trio, with the reset as seconds since 1970. `Retry-After`
is in whole seconds, rounded up, and is left out when a retry can never pass.

`t` of a denial is when a retry can pass, so that it never contradicts `Retry-After`; else it is when the key is as new. What never passes
has neither `t` nor a reset: any moment would invite a retry. Rules that are only tried out (`shadow`) limit nobody, and are not told.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Final

from ..decision import NO_LIMIT

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..decision import Decision

DRAFT: Final = "draft-ietf-httpapi-ratelimit-headers-11"
UNNAMED: Final = "default"
"""The name of the policy of a limit that belongs to no rule."""
US_PER_SECOND: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
ROUND_UP: Final = US_PER_SECOND - 1
MAX_KNOWN: Final = 10_000

_known: dict[int, tuple[Limit, bytes, str | None]] = {}
"""The lines of a limit, with places for numbers, by its id. The limit is kept with them, so that its id stays its own."""


def decision_lines(decision: Decision, took_ns: int) -> bytes:
    r"""The header lines of a decision, each ended by `\r\n`, in lower case, with the content type before them."""
    limit, context = decision.limited_by, decision.context
    allowed, remaining, retry_after_us, reset_after_us, _ = decision.answer
    if decision.several or limit is NO_LIMIT or retry_after_us < 0 or took_ns >= NS_PER_SECOND:
        return _lines_of_several(decision, took_ns)
    known = _known.get(id(limit))
    if known is None or known[2] != context[2]:
        known = _learn(limit, context[2])
    reset_after = (reset_after_us + ROUND_UP) // US_PER_SECOND
    reset_at, took_us = int(time()) + reset_after, took_ns // 1_000
    if allowed:
        return known[1] % (remaining, reset_after, remaining, reset_at, took_us)
    retry_after = _retry_after(retry_after_us)
    lines = known[1] % (remaining, retry_after, remaining, reset_at, took_us)
    return lines + b"retry-after: %d\r\n" % retry_after


def _lines_of_several(decision: Decision, took_ns: int) -> bytes:
    """The same where anything is unusual: several limits, none, no retry that passes, a second or more.

    Every policy is told; the older trio is about the one that spoke.
    """
    policies, states = [], []
    enforced = [one for one in decision.rules if one.source != "shadow"]
    for one in enforced:
        name = UNNAMED if one.rule is None else one.rule
        if sum(other.rule == one.rule for other in enforced) > 1:
            name = f"{name}/{window_name(one)}"
        t_us = one.answer[3] if one.allowed else one.answer[2]
        t = "" if one.never else f";t={-(-t_us // US_PER_SECOND)}"
        policies.append(policy_item(one.limited_by, name))
        states.append(f"{quoted(name)};r={one.remaining}{t}")
    lines = ["content-type: application/json"]
    if policies:
        lines += (f"ratelimit-policy: {', '.join(policies)}", f"ratelimit: {', '.join(states)}")
    if decision.limited:
        lines.append(f"x-ratelimit-limit: {decision.limit}")
        lines.append(f"x-ratelimit-remaining: {decision.remaining}")
    if decision.limited and not decision.never:
        reset_after = -(-decision.answer[3] // US_PER_SECOND)
        lines.append(f"x-ratelimit-reset: {int(time()) + reset_after}")
    if not decision.allowed and not decision.never:
        lines.append(f"retry-after: {_retry_after(decision.retry_after_us)}")
    lines.append(f"x-process-time: {took_ns / 1e9:.6f}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def window_name(decision: Decision) -> str:
    """What tells the limits of one rule apart."""
    return f"{decision.window:g}s" if decision.window else decision.algorithm


def _retry_after(retry_after_us: int) -> int:
    """Whole seconds, rounded up, and at least one."""
    return max(1, -(-retry_after_us // US_PER_SECOND))


def process_time_line(took_ns: int) -> bytes:
    """`X-Process-Time`: seconds that the answer took."""
    return b"x-process-time: %.6f\r\n" % (took_ns / 1e9)


def policy_item(limit: Limit, name: str) -> str:
    """One item of `RateLimit-Policy`: `"default";q=100;w=60`.

    `w` is in whole seconds; a window that is not has none. Slots are counted in requests at a time.
    """
    item = f"{quoted(name)};q={limit.limit}"
    if not limit.window_us:
        return f'{item};qu="concurrent-requests"'
    whole, rest = divmod(limit.window_us, US_PER_SECOND)
    return item if rest else f"{item};w={whole}"


def quoted(name: str) -> str:
    """A name as a string of RFC 9651: printable ASCII; anything else becomes `?`."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in name)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _learn(limit: Limit, rule: str | None) -> tuple[Limit, bytes, str | None]:
    name = UNNAMED if rule is None else rule
    policy, quoted_name = policy_item(limit, name), quoted(name)
    lines = (
        "content-type: application/json",
        f"ratelimit-policy: {policy}".replace("%", "%%"),
        f"ratelimit: {quoted_name}".replace("%", "%%") + ";r=%d;t=%d",
        f"x-ratelimit-limit: {limit.limit}",
        "x-ratelimit-remaining: %d",
        "x-ratelimit-reset: %d",
        "x-process-time: 0.%06d",
    )
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    known = _known[id(limit)] = (limit, "".join(f"{line}\r\n" for line in lines).encode(), rule)
    return known
