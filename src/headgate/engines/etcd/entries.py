"""Entries: what one commit writes, as bytes.

    zlib of {"v": 1, "base": …, "now": …, "shards": [[number, epoch, tables, reservations], …]}
    tables        [[namespace, rule, limit, {key: cell, …}, {number: cell, …}], …]   the latter are shared states
    reservations  [[namespace, token, record], …]

A cell or record is null where nothing is left. The newest entry about a place is the valid one, so entries are read in
order. `base` is the first entry that is still needed: everything older has been repeated. `now` is the time of the node
that wrote it; no later owner goes back before it.
"""

from __future__ import annotations

import json
import zlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .records import Tenure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shard import Rows

FORMAT: Final = 1
MOST_BYTES: Final = 1_000_000
"""etcd accepts 1.5 MiB at once, including overhead."""


_as_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Entry(NamedTuple):
    """One commit, ready to be sent."""

    sequence: int
    value: bytes
    base: int
    """The first entry that is still needed."""
    done: int
    """The first entry that was needed before: those in between can be deleted."""


class ShardRows(NamedTuple):
    """The content of an entry for one shard."""

    tables: list[list[Any]]
    reservations: list[list[Any]]
    now_us: int


def packed_rows(rows: Sequence[Rows], base: int, now_us: int) -> bytes:
    """The current content of these rows."""
    by_shard: dict[int, list[Rows]] = {}
    for one in rows:
        by_shard.setdefault(id(one.shard), []).append(one)
    shards = [those[0].shard.packed(those) for those in by_shard.values()]
    body = {"v": FORMAT, "base": base, "now": now_us, "shards": shards}
    return zlib.compress(_as_json(body).encode(), 1)


class JournalContent(NamedTuple):
    """The content of a journal: the rows of each tenure, in order, and its latest time."""

    rows: dict[tuple[int, Tenure], list[ShardRows]]
    now_us: int


def read_journal(incarnation: str, entries: Sequence[tuple[int, dict[str, Any]]]) -> JournalContent:
    """The rows of a journal by shard and tenure. Late copies of deleted entries are left out."""
    rows: dict[tuple[int, Tenure], list[ShardRows]] = {}
    latest_us = 0
    ordered = sorted(entries, key=itemgetter(0))
    base = ordered[-1][1]["base"] if ordered else 0
    for sequence, body in ordered:
        if sequence < base:
            continue
        latest_us = max(latest_us, body["now"])
        for number, epoch, tables, reservations in body["shards"]:
            said = ShardRows(tables, reservations, body["now"])
            rows.setdefault((number, Tenure(incarnation, epoch)), []).append(said)
    return JournalContent(rows, latest_us)


def unpacked(value: bytes) -> dict[str, Any]:
    """The body of an entry."""
    body: dict[str, Any] = json.loads(zlib.decompress(value))
    if body["v"] != FORMAT:
        raise ValueError(f"an entry has format {body['v']}, and this version reads {FORMAT}")
    return body
