"""What a service promises with its settings, in sentences: the rows of the promise table that hold for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .settings import Settings


class Promise(NamedTuple):
    """One promise: what it is about, and what is promised."""

    about: str
    text: str


def promises(settings: Settings) -> list[Promise]:
    """What holds with these settings."""
    return [*_counting(settings), *_failing(settings), _draining(settings)]


def _counting(settings: Settings) -> list[Promise]:
    if not settings.shared_engine:
        kept = "state_file=" in settings.engine
        return [
            Promise("counting", "exact: never more than the limit, in this one process"),
            Promise(
                "restart",
                "counts are kept by the state file; a kill loses at most its age"
                if kept
                else "counts start anew, so each limit can be used once more",
            ),
        ]
    found = [
        Promise(
            "counting", "exact: never more than the limit, over all processes that share the store"
        )
    ]
    if "sentinel" in settings.engine or "cluster" in settings.engine:
        found.append(
            Promise(
                "failover",
                "at most min(limit, rate × replication lag) more for each failover in the window",
            )
        )
    else:
        found.append(
            Promise("restart", "Redis without AOF forgets: each limit can then be used once more")
        )
    found.append(
        Promise(
            "deny cache", "another node's reset is seen within 1 s; nothing is let through by it"
        )
    )
    return found


def _failing(settings: Settings) -> list[Promise]:
    if not settings.shared_engine:
        return []
    return [
        Promise(
            "store down",
            f"every answer comes within its deadline: by the rule's on_error ({settings.on_error} unless it says otherwise), "
            "and 503 for checks that name no rule; it recovers by itself",
        )
    ]


def _draining(settings: Settings) -> Promise:
    return Promise(
        "SIGTERM",
        f"no request fails: answers in flight get up to {settings.drain_timeout:g} s; a second SIGTERM ends it",
    )
