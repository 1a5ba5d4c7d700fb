"""What a node depends on, in words: its store, the board, its rules, its event loop and other regions. Pure.

Only what is out of the ordinary has a level, `warn` or `bad`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .regions import LATELY
from .verdict import LATE_US, NOBODY_HAS, shards, span, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .hub import Frame

STORES: Final = {"memory": "Store", "redis": "Redis", "etcd": "etcd"}
ABOUT_RIGHTS: Final = "Units of limits kept by escrow, since the nodes of this region started."
MANY_REGIONS: Final = 3
"""Of more than that, only the one that is furthest behind is told."""


def parts_of(tick: Mapping[str, Any]) -> list[Frame]:
    """The parts of a tick: `name`, `text`, `level`, and `details` if there is more to say."""
    store, board, rules, late_us = (
        tick[name] for name in ("store", "board", "rules", "loop_lag_us")
    )
    is_heard = board["state"] == "ok"
    return [
        _part(
            STORES.get(store["kind"], store["kind"]), *_store(store, tick["now"]), store["problem"]
        ),
        _part(
            "Board",
            "in touch with all nodes" if is_heard else f"{span(board['age'])} old",
            "" if is_heard else "warn",
            board["problem"],
        ),
        _part("Rules", *_rules(rules), rules["problem"]),
        _part(
            "Event loop",
            f"{late_us / 1_000:.0f} ms late at most",
            "warn" if late_us > LATE_US else "",
        ),
        *_regions(tick["regions"], tick["now"]),
    ]


def _part(name: str, text: str, level: str, details: str | None = None) -> Frame:
    return {"name": name, "text": text, "level": level, "details": details}


def _store(store: Mapping[str, Any], now: float) -> tuple[str, str]:
    if store["state"] != "up":
        since = store["since"]
        return f"no answer for {span(now - since)}" if since else "does not answer", "bad"
    if store["kind"] == "memory":
        return "in this process", ""
    divided = store.get("shards")
    took = "" if store["p99_us"] is None else f" in {store['p99_us'] / 1_000:.2f} ms"
    if divided is None:
        return f"answers{took}, queue {store['queue']}", ""
    if divided["free"]:
        return f"{shards(divided['free'])} without an owner", "warn"
    return f"commits{took}, {divided['unconfirmed']} unconfirmed", ""


def _rules(rules: Mapping[str, Any]) -> tuple[str, str]:
    match rules["state"]:
        case "none":
            return "none", ""
        case "ok":
            revision = rules["revision"]
            return f"revision {revision}" if revision else "the starter rules", ""
        case "stale":
            return f"{span(rules['age'])} old", "warn"
        case _:
            return rules["problem"] or "a change was refused", "warn"


def _regions(regions: Mapping[str, Any] | None, now: float) -> list[Frame]:
    """How far the other regions are behind, and what became of rights; nothing where there is none of it."""
    if regions is None:
        return []
    others, rights = regions["others"], regions["rights"]
    cut = [one for one in others if not one["up"]]
    if cut:
        text = f"{', '.join(one['region'] for one in cut)} cut off"
    elif len(others) > MANY_REGIONS:
        text = f"{len(others)} others, {max(one['lag'] for one in others):.1f} s behind at most"
    else:
        behind = (f"{one['region']} {one['lag']:.1f} s" for one in others)
        text = f"{', '.join(behind)} behind"
    heard = "; ".join(map(_last_heard, cut)) or None
    found = [_part(f"Region {regions['here']}", text, "warn" if cut else "", heard)]
    return found if rights is None else [*found, *_rights(rights, now)]


def _last_heard(one: Mapping[str, Any]) -> str:
    ago = (
        "never heard from" if one["heard"] is None else f"last heard from {span(one['heard'])} ago"
    )
    return f"{one['region']} was {ago}"


def _rights(rights: Mapping[str, Any], now: float) -> list[Frame]:
    """Units that regions share by escrow. Lost ones are a warning for as long as the alert lasts."""
    lost, others = rights["lost"], rights["others"]
    totals = {name: sum(one[name] for one in others) for name in ("asked", "received", "given")}
    by_region = "; ".join(map(_between, others))
    found = [_part("Rights", _moved(totals), "", f"{ABOUT_RIGHTS} {by_region}.")]
    if lost:
        ago = now - rights["lost_at"]
        level = "warn" if ago <= LATELY else ""
        found.append(_part("Rights lost", f"{units(lost)}, {span(ago)} ago", level, NOBODY_HAS))
    return found


def _moved(one: Mapping[str, int]) -> str:
    """What was asked, received and given.

    >>> _moved({"asked": 12, "received": 2310, "given": 0})
    '12 asks, got 2,310, gave 0'
    """
    asks = "1 ask" if one["asked"] == 1 else f"{one['asked']:,} asks"
    return f"{asks}, got {one['received']:,}, gave {one['given']:,}"


def _between(one: Mapping[str, Any]) -> str:
    unanswered = f", {one['unanswered']:,} unanswered" if one["unanswered"] else ""
    return f"{one['region']}: {_moved(one)}{unanswered}"
