"""What a node depends on, in words: its store, the board, its rules and its event loop. Pure.

Only what is out of the ordinary has a level, `warn` or `bad`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .verdict import LATE_US, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .hub import Frame

STORES: Final = {"memory": "Store", "redis": "Redis", "etcd": "etcd"}


def parts_of(tick: Mapping[str, Any]) -> list[Frame]:
    """The parts of a tick: `name`, `text`, `level`, and the `problem` if there is one."""
    store, board, rules, late_us = (
        tick[name] for name in ("store", "board", "rules", "loop_lag_us")
    )
    is_heard = board["state"] == "ok"
    return [
        _part(STORES.get(store["kind"], store["kind"]), *_store(store, tick["now"]), store),
        _part(
            "Board",
            "in touch with all nodes" if is_heard else f"{span(board['age'])} old",
            "" if is_heard else "warn",
            board,
        ),
        _part("Rules", *_rules(rules), rules),
        _part(
            "Event loop",
            f"{late_us / 1_000:.0f} ms late at most",
            "warn" if late_us > LATE_US else "",
            {},
        ),
    ]


def _part(name: str, text: str, level: str, told: Mapping[str, Any]) -> Frame:
    return {"name": name, "text": text, "level": level, "problem": told.get("problem")}


def _store(store: Mapping[str, Any], now: float) -> tuple[str, str]:
    if store["state"] != "up":
        since = store["since"]
        return f"no answer for {span(now - since)}" if since else "does not answer", "bad"
    if store["kind"] == "memory":
        return "in this process", ""
    shards = store.get("shards")
    took = "" if store["p99_us"] is None else f" in {store['p99_us'] / 1_000:.2f} ms"
    if shards is None:
        return f"answers{took}, queue {store['queue']}", ""
    if shards["free"]:
        return f"commits{took}, {shards['free']} shards with nobody", "warn"
    return f"commits{took}, {shards['unconfirmed']} unconfirmed", ""


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
