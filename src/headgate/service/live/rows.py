"""Rows of the tables, and the tests that choose an algorithm, as the page shows them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .verdict import MANY_DENIED, SLOW_US, shards, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .hub import Frame

HOT_SHARE: Final = 0.1
HOT_RATE: Final = 1.0
"""A rule stands out that denies this share of requests, and so many a second."""
MOST_DENIED: Final = 50.0
VERY_SLOW: Final = 25.0
"""In percent and milliseconds: from here on a figure is bad."""


def rule_row(row: Frame) -> Frame:
    """Add the share that is denied: `denials` a second, or of a shadow rule what it would deny."""
    allowed, is_shadow = row["allowed"], row["mode"] == "shadow"
    denials = row["shadow_denied"] if is_shadow else row["denied"]
    requests = max(allowed, denials) if is_shadow else allowed + denials
    share = denials / requests if requests else 0.0
    is_hot = not is_shadow and share >= HOT_SHARE and denials >= HOT_RATE
    return row | {"denials": denials, "share": round(share, 4), "hot": is_hot}


def node_row(row: Frame, *, alone: bool) -> Frame:
    """Add what to say of a node: a `note`, and its `level`. What is not known of it is left out."""
    silence = span(row["age"])
    owned = row.get("shards")
    if row["state"] != "Up":
        level, note = "bad", f"down, {silence}"
    elif alone and not row["you"]:
        level, note = "unknown", f"up, {silence} ago"
    elif row["draining"]:
        level, note = "warn", "is ending"
    else:
        address = "" if row["address"] == row["id"] else row["address"]
        where = "this node" if row["you"] else address
        has = "" if owned is None else shards(owned)
        level, note = "ok", ", ".join(filter(None, (where, has)))
    is_known = level in {"ok", "warn"}
    return row | {
        "level": level,
        "note": note,
        "req_per_sec": row["req_per_sec"] if is_known else None,
        "p99_us": row["p99_us"] if is_known else None,
    }


def levels_of(tick: Mapping[str, Any]) -> dict[str, Frame]:
    """Figures that have crossed a threshold: their `level`, and a `tag` that says which."""
    traffic, p99_us = tick["traffic"], tick["latency_us"]["p99"]
    share = traffic["deny_rate"] if traffic["req_per_sec"] >= HOT_RATE else 0.0
    return {
        "denied": _crossed(100 * share, 100 * MANY_DENIED, MOST_DENIED, "%"),
        "latency": _crossed((p99_us or 0) / 1_000, SLOW_US / 1_000, VERY_SLOW, " ms"),
    }


def _crossed(value: float, warn: float, bad: float, unit: str) -> Frame:
    if value >= bad:
        return {"level": "bad", "tag": f"above {bad:g}{unit}"}
    return {"level": "warn", "tag": f"above {warn:g}{unit}"} if value >= warn else {}


def tests_of(traffic: Mapping[str, float], thresholds: Mapping[str, Any]) -> list[Frame]:
    """How the algorithm is chosen: the tests in their order, and how near each measure is to its threshold."""

    def measure(name: str, value: float, threshold: str, scale: float, unit: str) -> Frame:
        enter, leave = (thresholds[threshold][way] for way in ("enter", "leave"))
        return {
            "name": f"{name}, above {scale * enter:g}{unit}",
            "leave": f"left below {scale * leave:g}{unit}",
            "text": f"{_short(scale * value)}{unit}",
            "share": round(value / enter / 2, 3),
        }

    denied = measure("denied", traffic["deny_rate"], "abuse", 100, "%")
    requests = measure("requests", traffic["req_per_sec"], "abuse_rate", 1, " /s")
    ratio = traffic["burst_ratio"]
    burst = measure("burst ratio", ratio, "burst", 1, "")
    if not ratio:
        burst["text"] = "–"
    return [
        {"algorithm": "exponential_backoff", "when": "if both", "measures": [denied, requests]},
        {"algorithm": "token_bucket", "when": "else, if", "measures": [burst]},
        {"algorithm": "sliding_window", "when": "else", "measures": []},
    ]


def _short(value: float) -> str:
    """About three digits.

    >>> _short(659.1), _short(3.84), _short(0)
    ('659', '3.8', '0')
    """
    return f"{value:,.0f}" if value >= 9.95 or not value else f"{value:.1f}"
