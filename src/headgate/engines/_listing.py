"""Listing a memory engine's contents: keys page by page, and the states of one key.

A page takes one pass over all keys: a fifth of a second for a million, next to other threads. Decisions wait only while
the names are copied.
"""

from __future__ import annotations

import json
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING

from ..errors import UsageError
from .base import KeyEntry, KeyPage

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..clock import Clock
    from ._state_store import StateStore


def page_of(  # noqa: PLR0917 - what is listed, and which part of it
    core: StateStore, namespace: str, clock: Clock, prefix: str, cursor: str, limit: int
) -> KeyPage:
    """Keys in use, in the order of their text; the cursor is the last one seen."""
    behind = _place(cursor)
    with core.lock:  # Only to copy: decisions wait for as long as it is held.
        now_us = clock.now_us()
        copies = [
            (rule, identity, table, [*table.young, *table.old])
            for (owner, rule, identity), table in core.tables.items()
            if owner == namespace
        ]
    first = max(prefix, behind[0])
    found = []
    for rule, identity, table, keys in copies:
        # Of each table what could be on the page: one may have been the last of the page before.
        ahead = [key for key in keys if key >= first and key.startswith(prefix)]
        found += [((key, rule or "", identity), rule, table) for key in nsmallest(limit + 1, ahead)]
    page = nsmallest(limit, (one for one in found if one[0] > behind), key=itemgetter(0))
    entries = []
    with core.lock:
        for (key, _, _), rule, table in page:
            state, last = table.get(key), table.limit
            idle_at_us = 0 if state is None else last.idle_at_us(state)
            if idle_at_us > now_us:
                used = last.used(state, now_us)
                numbers = (last.window_us, used, idle_at_us, last.limit, not table.several)
                entries.append(KeyEntry(key, rule, last.name, *numbers))
    return KeyPage(entries, json.dumps(page[-1][0]) if len(page) == limit else "")


def states_of(core: StateStore, namespace: str, key: str) -> list[tuple[str | None, Limit]]:
    """What is kept of one key: rules, and limits that find it."""
    with core.lock:
        return [
            (rule, table.limit)
            for (owner, rule, _), table in core.tables.items()
            if owner == namespace and table.get(key) is not None
        ]


def _place(cursor: str) -> tuple[str, str, str]:
    """Where a page begins: behind this key, rule and window."""
    if not cursor:
        return ("", "", "")
    try:
        parts = json.loads(cursor)
    except (ValueError, RecursionError):
        parts = None
    match parts:
        case [str(key), str(rule), str(identity)]:
            return key, rule, identity
    raise UsageError("invalid cursor; start with an empty one", "cursor")
