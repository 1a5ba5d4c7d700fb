"""What a region knows of all regions, in Redis or Valkey: alone, watched by Sentinels, or a Cluster.

As the board does, it uses the engine's own way to a server, on a connection of its own. All keys share one slot.
"""

from __future__ import annotations

import json
import secrets
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ..engines.redis.aio import AsyncRedisEngine
from ..engines.redis.keys import KeyCodec, slot_of
from ..engines.redis.scripts import Script
from ..engines.redis.sending import RoutedCommand
from ..errors import ConfigError
from .counters import Actor, CounterTotal, Growth, forget_at_us
from .messages import read_name, words_of
from .store import LinkState, Merged, RegionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engines.redis.options import Options
    from .counters import CounterName

SCAN: Final = 1_000
"""How many counters are looked at in one go."""


class RedisRegionStore:
    """Keeps it in Redis."""

    def __init__(self, url: str | Options, *, namespace: str = "") -> None:
        self._engine = AsyncRedisEngine(url)
        options = self._engine.options
        if options.hash_keys:
            raise ConfigError(
                "regions tell each other which keys they admit, and hash_keys keeps keys out of the store; "
                "name another Redis in 'board', or do without one of the two"
            )
        clustered = options.topology == "cluster"
        self._codec = KeyCodec(namespace, clustered=clustered, secret=options.secret)
        part = self._codec.board
        self._totals, self._changed = part("regions:totals"), part("regions:changed")
        self._ends, self._meta = part("regions:ends"), part("regions:meta")
        self._slot = slot_of(self._totals) if clustered else 0

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """See `RegionStore.merge`."""
        arguments: list[Any] = [heard_from, secrets.token_hex(8)]
        for name, actor, total in entries:
            arguments += (_field(name, actor), total, forget_at_us(name))
        keys = (self._totals, self._changed, self._ends, self._meta)
        now_us, meta, grown = await self._call("merge", keys, arguments)
        state = _state(int(now_us), meta)
        growths = [
            Growth(one.name, one.actor, units)
            for one, units in zip(entries, grown, strict=True)
            if units
        ]
        return Merged(state, growths)

    async def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """See `RegionStore.changes`."""
        command = (
            b"ZRANGEBYSCORE",
            self._changed,
            f"({since}",
            "+inf",
            "WITHSCORES",
            "LIMIT",
            0,
            most,
        )
        rows = await self._run(command)
        fields = rows[::2]
        if not fields:
            return [], since
        totals = await self._run((b"HMGET", self._totals, *fields))
        # What has ended between the two commands has no total.
        found = [_entry(one, int(many)) for one, many in zip(fields, totals, strict=True) if many]
        return found, int(float(rows[-1]))

    async def lead(self, region: str, node: str, ttl_us: int) -> bool:
        """See `RegionStore.lead`."""
        leader = self._codec.board(f"regions:leader:{region}")
        arguments = (node, ttl_us // 1000, region)
        return bool(await self._call("lead", (leader, self._meta), arguments))

    async def note_taken(self, region: str, taken_us: int) -> None:
        """See `RegionStore.note_taken`."""
        await self._run((b"HSET", self._meta, f"taken:{region}", taken_us))

    async def counters_of(self, key: str) -> list[CounterTotal]:
        """See `RegionStore.counters_of`."""
        cursor: Any = b"0"
        found: dict[bytes, int] = {}
        while True:
            cursor, rows = await self._run((b"HSCAN", self._totals, cursor, "COUNT", SCAN))
            wanted = f",{json.dumps(key, ensure_ascii=False)},".encode()
            for one, total in zip(rows[::2], rows[1::2], strict=True):
                if wanted in one:
                    found[one] = int(total)
            if cursor in (b"0", "0", 0):
                break
        entries = [_entry(one, total) for one, total in found.items()]
        return [one for one in entries if one.name.key == key]

    async def aclose(self) -> None:
        """Close the connection."""
        await self._engine.aclose()

    async def _run(self, command: tuple[Any, ...]) -> Any:
        return await self._engine.run(RoutedCommand(command, self._slot))

    async def _call(self, name: str, keys: tuple[bytes, ...], arguments: Any) -> Any:
        called = _script(name)
        command = (b"EVALSHA", called.sha, len(keys), *keys, *arguments)
        return await self._engine.run(RoutedCommand(command, self._slot, called))


@cache
def _script(name: str) -> Script:
    text = (files(__package__) / "lua" / f"{name}.lua").read_bytes()
    digest = sha1(text, usedforsecurity=False).hexdigest()  # The name that Redis itself gives it.
    return Script(name, text, digest.encode())


def _field(name: CounterName, actor: Actor) -> bytes:
    row = [name.rule, name.key, words_of(name.limit), name.slice_us, *actor]
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()


def _entry(field: bytes, total: int) -> CounterTotal:
    *name, region, epoch, node = json.loads(field)
    return CounterTotal(read_name(name), Actor(region, epoch, node), total)


def _state(now_us: int, meta: list[bytes]) -> RegionState:
    found = {name.decode(): one for name, one in zip(meta[::2], meta[1::2], strict=True)}
    links: dict[str, LinkState] = {}
    for name, value in found.items():
        what, _, region = name.partition(":")
        known = links.get(region, LinkState())
        if what == "taken":
            links[region] = known._replace(taken_us=int(value))
        elif what == "heard":
            links[region] = known._replace(heard_us=int(value))
        elif what == "shipper":
            links[region] = known._replace(shipper=value.decode())
    return RegionState(now_us, found["epoch"].decode(), links)
