"""The HTTP headers of a decision. Only this module knows the revision of the IETF draft.

`RateLimit` and `RateLimit-Policy` are written as in draft-ietf-httpapi-ratelimit-headers-11 (the syntax has been the
same since -08): lists of quoted policy names with parameters. `X-RateLimit-*` is the older trio, with the reset as
seconds since 1970 by the store's clock. `X-RateLimit-Degraded` is sent only if an answer is less exact than its limit
promises, and has its source. `Retry-After` is in whole seconds, rounded up, and is left out when a retry can never
pass.

`t` of a denial is when a retry can pass, so that it never contradicts `Retry-After`; else it is when the key counts as
unused. A request that can never pass has neither `t` nor a reset: any time would invite a retry. Shadow rules limit
nothing and are left out.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from .algorithms import Limit
    from .decision import Decision

DRAFT: Final = "draft-ietf-httpapi-ratelimit-headers-11"
NONE: Final = "none"
"""The algorithm of a decision to which no limit applied."""
NAMES: Final = {
    b"ratelimit-policy": "RateLimit-Policy",
    b"ratelimit": "RateLimit",
    b"x-ratelimit-limit": "X-RateLimit-Limit",
    b"x-ratelimit-remaining": "X-RateLimit-Remaining",
    b"x-ratelimit-reset": "X-RateLimit-Reset",
    b"retry-after": "Retry-After",
    b"x-ratelimit-degraded": "X-RateLimit-Degraded",
}
UNNAMED: Final = "default"
"""The name of the policy of a limit that belongs to no rule."""
US_PER_SECOND: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
ROUND_UP: Final = US_PER_SECOND - 1
MAX_KNOWN: Final = 10_000

_known: dict[tuple[int, str | None], tuple[Limit, bytes]] = {}
"""The lines of a limit, with places for numbers, by its id and its rule. The limit is kept with them, so that its id
stays its own."""

Pair: TypeAlias = tuple[bytes, bytes]
Pairs: TypeAlias = "tuple[Limit, Pair, bytes, Pair]"
RATELIMIT: Final = b"ratelimit"
REMAINING: Final = b"x-ratelimit-remaining"
RESET: Final = b"x-ratelimit-reset"
_known_pairs: dict[tuple[int, str | None], Pairs] = {}
"""The same as names and values: the limit, its policy, its state with places for numbers, and the first of the older
trio."""


def decision_lines(decision: Decision, took_ns: int, ahead_us: int = 0) -> bytes:
    r"""The header lines of a decision, each ended by `\r\n`, in lower case, with the content type before them.

    The store's clock is `ahead_us` ahead of ours; the reset time is by the store's clock.
    """
    limit, context = decision.limited_by, decision.context
    allowed, remaining, retry_after_us, reset_after_us, _ = decision.answer
    if (
        decision.several or context[1] or limit.name == NONE or retry_after_us < 0
        or took_ns >= NS_PER_SECOND
    ):  # fmt: skip
        return _lines_of_several(decision, took_ns, ahead_us)
    known = _known.get((id(limit), context[2]))
    if known is None:
        known = _learn(limit, context[2])
    reset_after = (reset_after_us + ROUND_UP) // US_PER_SECOND
    reset_at, took_us = int(time() + ahead_us / US_PER_SECOND) + reset_after, took_ns // 1_000
    if allowed:
        return known[1] % (remaining, reset_after, remaining, reset_at, took_us)
    retry_after = _retry_after(retry_after_us)
    lines = known[1] % (remaining, retry_after, remaining, reset_at, took_us)
    return lines + b"retry-after: %d\r\n" % retry_after


def _lines_of_several(decision: Decision, took_ns: int, ahead_us: int) -> bytes:
    """The same for unusual decisions: several limits, none, a store that did not answer, a retry that never passes.

    It lists every policy; the older trio is about the limit that decided.
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
        lines.append(f"x-ratelimit-reset: {int(time() + ahead_us / US_PER_SECOND) + reset_after}")
    if not decision.allowed and not decision.never:
        lines.append(f"retry-after: {_retry_after(decision.retry_after_us)}")
    if decision.degraded:
        lines.append(f"x-ratelimit-degraded: {decision.source}")
    lines.append(f"x-process-time: {took_ns / 1e9:.6f}s")
    return "".join(f"{line}\r\n" for line in lines).encode()


def headers_by_name(decision: Decision) -> dict[str, str]:
    """The same headers in their usual capitalisation; see `Decision.headers`."""
    return {NAMES[name]: value.decode() for name, value in header_pairs(decision)}


def header_pairs(decision: Decision) -> list[tuple[bytes, bytes]]:
    """The rate limit headers as names and values, as in ASGI, without content type and process time."""
    limit, (allowed, remaining, retry_after_us, reset_after_us, _) = (
        decision.limited_by,
        decision.answer,
    )
    if decision.several or decision.context[1] or limit.name == NONE or retry_after_us < 0:
        return _pairs_of_several(decision)
    known = _known_pairs.get((id(limit), decision.context[2]))
    if known is None:
        known = _learn_pairs(limit, decision.context[2])
    _, policy, state, trio = known
    reset_after = (reset_after_us + ROUND_UP) // US_PER_SECOND
    left, reset_at = b"%d" % remaining, b"%d" % (int(time()) + reset_after)
    if allowed:
        told = state % (remaining, reset_after)
        return [policy, (RATELIMIT, told), trio, (REMAINING, left), (RESET, reset_at)]
    retry_after = _retry_after(retry_after_us)
    return [
        policy,
        (RATELIMIT, state % (remaining, retry_after)),
        trio,
        (REMAINING, left),
        (RESET, reset_at),
        (b"retry-after", b"%d" % retry_after),
    ]


def _pairs_of_several(decision: Decision) -> list[tuple[bytes, bytes]]:
    """The same for unusual decisions; empty if no limit applied."""
    if not decision.several and not decision.limited:
        return []
    lines = _lines_of_several(decision, 0, 0).split(b"\r\n")
    parts = [line.partition(b": ") for line in lines[1:-2]]
    return [(name, value) for name, _, value in parts]


def _learn_pairs(limit: Limit, rule: str | None) -> Pairs:
    name = UNNAMED if rule is None else rule
    policy = (b"ratelimit-policy", policy_item(limit, name).encode())
    state = (quoted(name).replace("%", "%%") + ";r=%d;t=%d").encode()
    if len(_known_pairs) >= MAX_KNOWN:
        _known_pairs.clear()
    trio = (b"x-ratelimit-limit", b"%d" % limit.limit)
    known = _known_pairs[id(limit), rule] = (limit, policy, state, trio)
    return known


def window_name(decision: Decision) -> str:
    """What tells the limits of one rule apart."""
    return f"{decision.window:g}s" if decision.window else decision.algorithm


def _retry_after(retry_after_us: int) -> int:
    """Whole seconds, rounded up, and at least one."""
    return max(1, -(-retry_after_us // US_PER_SECOND))


def process_time_line(took_ns: int) -> bytes:
    """`X-Process-Time`: seconds that the answer took, such as `0.000120s`."""
    return b"x-process-time: %.6fs\r\n" % (took_ns / 1e9)


def policy_item(limit: Limit, name: str) -> str:
    """One item of `RateLimit-Policy`: `"default";q=100;w=60`.

    `w` is in whole seconds; other windows have none. Slots are counted in concurrent requests.
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


def _learn(limit: Limit, rule: str | None) -> tuple[Limit, bytes]:
    name = UNNAMED if rule is None else rule
    policy, quoted_name = policy_item(limit, name), quoted(name)
    lines = (
        "content-type: application/json",
        f"ratelimit-policy: {policy}".replace("%", "%%"),
        f"ratelimit: {quoted_name}".replace("%", "%%") + ";r=%d;t=%d",
        f"x-ratelimit-limit: {limit.limit}",
        "x-ratelimit-remaining: %d",
        "x-ratelimit-reset: %d",
        "x-process-time: 0.%06ds",
    )
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    text = "".join(f"{line}\r\n" for line in lines).encode()
    known = _known[id(limit), rule] = (limit, text)
    return known
