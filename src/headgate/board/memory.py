"""A board in this process: for a single node, or several in a test.

With a `file`, per-key settings survive a crash: the file is replaced atomically (see `_atomic_file.py`) before a change
is acknowledged. Nothing else needs to be stored.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .._atomic_file import replace_file
from ..clock import SystemClock
from ..engines.memory_kind import memory_options
from ..errors import ConfigError
from .model import Totals
from .store import MAX_AGREED, BoardPull, BoardPush, Counts, NodeRow, StoredChoice, UnwritableError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from .._query import Readers
    from ..clock import Clock
    from .store import ChoiceProposal
    from .traffic import SecondCounts


BOARD_OPTIONS: Readers = {"file": str}


def open_store(url: str, _namespace: str, _clock: Clock) -> MemoryStore:
    """The board that a URL names: `memory://?file=…`."""
    return MemoryStore(file=memory_options(url, BOARD_OPTIONS).get("file"))


def open_store_beside(engine: str, _namespace: str, _clock: Clock) -> MemoryStore:
    """The board next to an engine: in a file if the engine has one."""
    own = engine.startswith("memory:")
    state_file = memory_options(engine).get("state_file") if own else None
    return MemoryStore(file=f"{state_file}.board" if state_file else None)


class MemoryStore:
    """Stores a board in dictionaries. Several boards may share it."""

    lag_seconds = 0
    private_lists = True

    def __init__(
        self, *, clock: Clock | None = None, file: str | os.PathLike[str] | None = None
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._file = None if file is None else Path(file)
        self._nodes: dict[str, NodeRow] = {}
        self._counts: dict[str, Counts] = {}
        self._gone = Totals()
        self._lists: dict[tuple[str, str], bytes] = {}
        self._scopes: dict[str, Mapping[str, SecondCounts]] = {}
        self._agreed: dict[str, StoredChoice] = {}
        self._agreed_revision = 0
        self._revision = 0
        self._changing = asyncio.Lock()
        self._kept: dict[str, tuple[bytes, int | None]] = self._load()
        self._require_writable()

    async def exchange(self, push: BoardPush) -> BoardPull:
        """Send this node's part and get everybody's."""
        now_us = self._clock.now_us()
        if push.identity is not None:
            known = self._nodes.get(push.node)
            registered_us = now_us if known is None else known.registered_us
            self._nodes[push.node] = NodeRow(now_us, registered_us, push.identity)
        self._counts[push.counted_by] = push.counts
        self._scopes[push.counted_by] = push.scopes
        for name, packed in push.lists.items():
            self._lists[name, push.node] = packed
        self._expire(now_us, push.forget_us, push.counted_by)
        revision, agreed_revision = str(self._revision), str(self._agreed_revision)
        return BoardPull(
            now_us=now_us,
            nodes=dict(self._nodes),
            counts=dict(self._counts),
            gone=self._gone,
            revision=revision,
            kept=None if push.revision == revision else {n: v for n, (v, _) in self._kept.items()},
            scopes=dict(self._scopes),
            agreed_revision=agreed_revision,
            agreed=None if push.agreed_revision == agreed_revision else dict(self._agreed),
        )

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Store a value, or remove it."""
        async with self._changing:
            changed = dict(self._kept)
            before = changed.pop(name, None)
            if value is not None:
                changed[name] = (value, until_us)
            if self._file is not None:
                await asyncio.to_thread(_save, self._file, changed)
            self._kept = changed
            self._revision += 1
        return None if before is None else before[0]

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        """Replace a choice if its epoch is the expected one."""
        stored = self._agreed.get(proposal.scope, StoredChoice())
        if stored.epoch != proposal.expected_epoch:
            return stored
        if not stored.epoch and len(self._agreed) >= MAX_AGREED:
            self._agreed.clear()
        self._agreed[proposal.scope] = proposal.choice
        self._agreed_revision += 1
        return proposal.choice

    async def lists(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes under this name."""
        return {node: packed for (kind, node), packed in self._lists.items() if kind == name}

    async def leave(self, node: str) -> None:
        """Forget a node."""
        self._forget(node)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _expire(self, now_us: int, forget_us: int, counted_by: str) -> None:
        for node in [node for node, row in self._nodes.items() if row.beat_us + forget_us < now_us]:
            self._forget(node)
        for by, (totals, strip) in list(self._counts.items()):
            starting = not strip.last and totals.requests
            if strip.last * 1_000_000 + forget_us < now_us and not starting and by != counted_by:
                self._scopes.pop(by, None)
                del self._counts[by]  # Its last seconds have been read by now.
                self._gone = Totals(
                    self._gone.requests + totals.requests, self._gone.denied + totals.denied
                )
        over = [n for n, (_, until_us) in self._kept.items() if (until_us or now_us + 1) <= now_us]
        if over:
            self._kept = {name: row for name, row in self._kept.items() if name not in over}
            self._revision += 1

    def _forget(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._lists = {at: packed for at, packed in self._lists.items() if at[1] != node}

    def _load(self) -> dict[str, tuple[bytes, int | None]]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            rows = json.loads(self._file.read_bytes())
            return {
                name: (base64.b64decode(value), until_us)
                for name, (value, until_us) in rows["kept"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._file} is not a valid board file ({error}); move it away to start empty"
            ) from error

    def _require_writable(self) -> None:
        """Write the file once, so that a failure shows at startup and not on the first change."""
        if self._file is not None:
            try:
                _save(self._file, self._kept)
            except UnwritableError as error:
                raise ConfigError(str(error)) from error


def _save(path: Path, kept: dict[str, tuple[bytes, int | None]]) -> None:
    """Rewrite the file."""
    rows = {
        name: (base64.b64encode(value).decode(), until_us)
        for name, (value, until_us) in kept.items()
    }
    try:
        replace_file(path, json.dumps({"format": 1, "kept": rows}).encode(), private=True)
    except OSError as error:
        raise UnwritableError(f"the board cannot be written to {path}: {error.strerror}") from error
