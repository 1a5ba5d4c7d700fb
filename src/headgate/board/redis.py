"""A board in Redis or Valkey: standalone, Sentinel or Cluster.

It uses the engine's client code (`headgate.engines.redis`) with its own connection: it finds a new master in the same
way, and a long list never delays a decision. An exchange is one script, which is one round trip and uses the server's
clock, so nodes with different clocks agree on the current second.

All keys share one slot: `hg:b{tag}namespace:nodes` and so on. Only commands that the documented access list allows are
used.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ..engines.redis.aio import AsyncRedisEngine
from ..engines.redis.keys import KeyCodec, slot_of
from ..engines.redis.scripts import Script
from ..engines.redis.sending import RoutedCommand
from .model import Totals
from .rows import (
    packed_choice,
    packed_counts,
    packed_scopes,
    unpacked_choice,
    unpacked_counts,
    unpacked_node,
    unpacked_scopes,
)
from .store import MAX_AGREED, BoardPull, BoardPush, StoredChoice

if TYPE_CHECKING:
    from ..clock import Clock
    from ..engines.redis.options import Options
    from .store import ChoiceProposal

GONE: Final = (b"gone_requests", b"gone_denied")


def open_store(url: str | Options, namespace: str, _clock: Clock) -> RedisStore:
    """The board that a URL names; it uses the server's clock."""
    return RedisStore(url, namespace=namespace)


open_store_beside = open_store
"""The board next to an engine: in the same Redis, on its own connection."""


class RedisStore:
    """Stores a board in Redis."""

    lag_seconds = 1

    def __init__(self, url: str | Options, *, namespace: str = "") -> None:
        self._engine = AsyncRedisEngine(url)
        options = self._engine.options
        self.private_lists = options.hash_keys
        """With hashed keys in the store, lists of plain keys must not be stored there either."""
        clustered = options.topology == "cluster"
        keys = KeyCodec(namespace, clustered=clustered, secret=options.secret)
        self._nodes, self._counts, self._lists = map(keys.board, ("nodes", "counts", "sheets"))
        self._kept, self._ends, self._meta = map(keys.board, ("kept", "ends", "meta"))
        self._scopes, self._agreed = map(keys.board, ("scopes", "agreed"))
        self._slot = slot_of(self._nodes) if clustered else 0

    async def exchange(self, push: BoardPush) -> BoardPull:
        """Send this node's part and get everybody's, in one round trip."""
        keys = (
            *(self._nodes, self._counts, self._lists, self._kept, self._ends, self._meta),
            *(self._scopes, self._agreed),
        )
        arguments: list[Any] = [
            push.node,
            push.identity or b"",
            push.forget_us,
            packed_counts(push.counts),
            push.revision,
            push.counted_by,
            packed_scopes(push.scopes),
            push.agreed_revision,
        ]
        for name, packed in push.lists.items():
            arguments += (name, packed)
        reply = await self._call("exchange", keys, arguments)
        now_us, revision, nodes, counts, kept, scopes, agreed_revision, agreed = reply
        found = dict(_pairs(counts))
        gone = Totals(*(int(found.pop(name, 0)) for name in GONE))
        return BoardPull(
            now_us=int(now_us),
            nodes={node.decode(): unpacked_node(value) for node, value in _pairs(nodes)},
            counts={life.decode(): unpacked_counts(value) for life, value in found.items()},
            gone=gone,
            revision=revision.decode(),
            kept=None if kept is None else {n.decode(): value for n, value in _pairs(kept)},
            scopes={life.decode(): unpacked_scopes(value) for life, value in _pairs(scopes)},
            agreed_revision=agreed_revision.decode(),
            agreed=None
            if agreed is None
            else {scope.decode(): unpacked_choice(value) for scope, value in _pairs(agreed)},
        )

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Store a value under a name, or remove it."""
        arguments = (name, value or b"", "" if until_us is None else until_us)
        before: bytes | None = await self._call(
            "change", (self._kept, self._ends, self._meta), arguments
        )
        return before

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        """Replace a choice if its epoch is the expected one."""
        scope, expected_epoch, choice = proposal
        arguments = (scope, expected_epoch, packed_choice(choice), MAX_AGREED)
        return unpacked_choice(await self._call("agree", (self._agreed, self._meta), arguments))

    async def lists(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes under this name."""
        rows = await self._engine.run(RoutedCommand((b"HGETALL", self._lists), self._slot))
        start = f"{name}:".encode()
        return {
            field.removeprefix(start).decode(): packed
            for field, packed in _pairs(rows)
            if field.startswith(start)
        }

    async def leave(self, node: str) -> None:
        """Forget a node."""
        await self._call("leave", (self._nodes, self._lists), (node,))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._engine.aclose()

    async def _call(self, name: str, keys: tuple[bytes, ...], arguments: Any) -> Any:
        called = _script(name)
        command = (b"EVALSHA", called.sha, len(keys), *keys, *arguments)
        return await self._engine.run(RoutedCommand(command, self._slot, called))


@cache
def _script(name: str) -> Script:
    text = (files(__package__) / "lua" / f"{name}.lua").read_bytes()
    # Redis identifies scripts by this digest.
    digest = sha1(text, usedforsecurity=False).hexdigest()
    return Script(name, text, digest.encode())


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
