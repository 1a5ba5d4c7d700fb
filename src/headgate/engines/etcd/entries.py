"""Entries: what one commit writes, as bytes.

    zlib of {"v": 1, "base": …, "now": …, "shards": [[number, epoch, tables, reservations], …]}
    tables        [[namespace, rule, limit, {key: cell, …}, {number: cell, …}], …]   the second are shared states
    reservations  [[namespace, token, record], …]

A cell or record is null where there is nothing any more. The newest entry that says something about a place is right,
so entries are read in their order. `base` is the first entry that is still needed: what is older has been said again.
`now` is the time of the node that wrote it; no later owner goes back behind it.
"""

from __future__ import annotations

import json
import zlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .records import Tenure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shard import Ref, Shard

FORMAT: Final = 1
MOST_BYTES: Final = 1_000_000
"""etcd takes 1.5 MiB at once, with everything around it."""


class Entry(NamedTuple):
    """One commit, ready to be sent."""

    sequence: int
    value: bytes
    base: int
    """The first entry that is still needed."""
    done: int
    """The first that was needed before it: those in between can go."""


class ShardRows(NamedTuple):
    """What an entry says about one shard."""

    tables: list[list[Any]]
    reservations: list[list[Any]]
    now_us: int


def packed_rows(rows: Sequence[tuple[Shard, Ref]], base: int, now_us: int) -> bytes:
    """Those places as they are now."""
    by_shard: dict[int, tuple[Shard, list[Ref]]] = {}
    for shard, ref in rows:
        by_shard.setdefault(id(shard), (shard, []))[1].append(ref)
    shards = [shard.packed(refs) for shard, refs in by_shard.values()]
    body = {"v": FORMAT, "base": base, "now": now_us, "shards": shards}
    return zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 1)


class JournalContent(NamedTuple):
    """A journal that was read: what it says about each tenure, in order, and its latest time."""

    rows: dict[tuple[int, Tenure], list[ShardRows]]
    now_us: int


def read_journal(incarnation: str, entries: Sequence[tuple[int, dict[str, Any]]]) -> JournalContent:
    """The rows of a journal by shard and tenure. Late copies of entries that had been deleted are left out."""
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
