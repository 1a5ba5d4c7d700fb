"""A store in Redis or Valkey: alone, watched by Sentinels, or a Cluster.

It uses the engine's own way to a server (`headgate.engines.redis`), with a connection of its own: what finds a new
master for decisions finds it for the board, and a long list never stands in a decision's way. An exchange is one script,
which is one round trip and uses the server's clock, so nodes whose clocks differ still agree which second it is.

All keys share one slot: `hg:b{tag}namespace:nodes` and so on. Only commands that the documented access list allows are used.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ..engines.redis.aio import AsyncRedisEngine
from ..engines.redis.carry import Errand
from ..engines.redis.keys import KeyCodec, slot_of
from ..engines.redis.scripts import Script
from .model import Totals
from .store import NO_STRIP, Counts, Pulled, Push, Row
from .traffic import KEPT_SECONDS, Strip

if TYPE_CHECKING:
    from ..engines.redis.options import Options

GONE: Final = (b"gone_requests", b"gone_denied")


class RedisStore:
    """Keeps a board in Redis."""

    lag_seconds = 1

    def __init__(self, url: str | Options, *, namespace: str = "") -> None:
        self._engine = AsyncRedisEngine(url)
        options = self._engine.options
        self.hash_keys = options.hash_keys
        """Whether the store is not to see who is limited."""
        clustered = options.topology == "cluster"
        keys = KeyCodec(namespace, clustered=clustered, secret=options.secret)
        self._nodes, self._counts, self._sheets = map(keys.board, ("nodes", "counts", "sheets"))
        self._kept, self._ends, self._meta = map(keys.board, ("kept", "ends", "meta"))
        self._slot = slot_of(self._nodes) if clustered else 0

    async def exchange(self, push: Push) -> Pulled:
        """Bring this node's part and take the others' along, in one round trip."""
        keys = (self._nodes, self._counts, self._sheets, self._kept, self._ends, self._meta)
        arguments: list[Any] = [
            push.node,
            push.identity or b"",
            push.forget_us,
            _packed(push.counts),
            push.revision,
        ]
        for name, sheet in push.sheets.items():
            arguments += (name, sheet)
        reply = await self._call("exchange", keys, arguments)
        now_us, revision, nodes, counts, kept = reply
        found = dict(_pairs(counts))
        gone = Totals(*(int(found.pop(name, 0)) for name in GONE))
        return Pulled(
            now_us=int(now_us),
            nodes={node.decode(): _row(value) for node, value in _pairs(nodes)},
            counts={node.decode(): _unpacked(value) for node, value in found.items()},
            gone=gone,
            revision=revision.decode(),
            kept=None if kept is None else {n.decode(): value for n, value in _pairs(kept)},
        )

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Keep a value under a name, or remove it."""
        arguments = (name, value or b"", "" if until_us is None else until_us)
        before: bytes | None = await self._call(
            "change", (self._kept, self._ends, self._meta), arguments
        )
        return before

    async def sheets(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes that go by this name."""
        rows = await self._engine.run(Errand((b"HGETALL", self._sheets), self._slot))
        start = f"{name}:".encode()
        return {
            field.removeprefix(start).decode(): sheet
            for field, sheet in _pairs(rows)
            if field.startswith(start)
        }

    async def leave(self, node: str) -> None:
        """Forget a node."""
        await self._call("leave", (self._nodes, self._counts, self._sheets), (node,))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._engine.aclose()

    async def _call(self, name: str, keys: tuple[bytes, ...], arguments: Any) -> Any:
        called = _script(name)
        command = (b"EVALSHA", called.sha, len(keys), *keys, *arguments)
        return await self._engine.run(Errand(command, self._slot, called))


@cache
def _script(name: str) -> Script:
    text = (files(__package__) / "lua" / f"{name}.lua").read_bytes()
    digest = sha1(text, usedforsecurity=False).hexdigest()  # The name that Redis itself gives it.
    return Script(name, text, digest.encode())


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _packed(counts: Counts) -> str:
    """A JSON list of numbers: requests, denied, and the strip; a script reads the first two by pattern."""
    (requests, denied), strip = counts
    return json.dumps([requests, denied, strip.last, *strip.counts], separators=(",", ":"))


def _unpacked(value: bytes) -> Counts:
    requests, denied, last, *counts = json.loads(value)
    strip = Strip(last, tuple(counts)) if len(counts) == 2 * KEPT_SECONDS else NO_STRIP
    return Counts(Totals(requests, denied), strip)


def _row(value: bytes) -> Row:
    beat_us, registered_us, identity = value.split(b":", 2)
    return Row(int(beat_us), int(registered_us), identity)
