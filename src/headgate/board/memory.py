"""A store in this process: for one node, and for tests of several.

With a `file`, what people have set survives a crash: the file is replaced as a whole (see `whole_file.py`) before a change is
acknowledged. Nothing else is worth keeping.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import SystemClock
from ..errors import ConfigError
from ..whole_file import replace_file
from .model import Totals
from .store import Counts, Pulled, Push, Row, UnwritableError

if TYPE_CHECKING:
    import os

    from ..clock import Clock


class MemoryStore:
    """Keeps a board in dictionaries. Several boards may share one."""

    lag_seconds = 0

    def __init__(
        self, *, clock: Clock | None = None, file: str | os.PathLike[str] | None = None
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._file = None if file is None else Path(file)
        self._nodes: dict[str, Row] = {}
        self._counts: dict[str, Counts] = {}
        self._gone = Totals()
        self._sheets: dict[tuple[str, str], bytes] = {}
        self._revision = 0
        self._changing = asyncio.Lock()
        self._kept: dict[str, tuple[bytes, int | None]] = self._load()
        self._require_writable()

    async def exchange(self, push: Push) -> Pulled:
        """Bring this node's part and take the others' along."""
        now_us = self._clock.now_us()
        if push.identity is not None:
            known = self._nodes.get(push.node)
            registered_us = now_us if known is None else known.registered_us
            self._nodes[push.node] = Row(now_us, registered_us, push.identity)
        self._counts[push.node] = push.counts
        for name, sheet in push.sheets.items():
            self._sheets[name, push.node] = sheet
        self._expire(now_us, push.forget_us)
        revision = str(self._revision)
        return Pulled(
            now_us=now_us,
            nodes=dict(self._nodes),
            counts=dict(self._counts),
            gone=self._gone,
            revision=revision,
            kept=None if push.revision == revision else {n: v for n, (v, _) in self._kept.items()},
        )

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Keep a value, or remove it."""
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

    async def sheets(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes that go by this name."""
        return {node: sheet for (kind, node), sheet in self._sheets.items() if kind == name}

    async def leave(self, node: str) -> None:
        """Forget a node."""
        self._forget(node)

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _expire(self, now_us: int, forget_us: int) -> None:
        for node in [node for node, row in self._nodes.items() if row.beat_us + forget_us < now_us]:
            self._forget(node)
        over = [n for n, (_, until_us) in self._kept.items() if (until_us or now_us + 1) <= now_us]
        if over:
            self._kept = {name: row for name, row in self._kept.items() if name not in over}
            self._revision += 1

    def _forget(self, node: str) -> None:
        self._nodes.pop(node, None)
        totals = self._counts.pop(node, Counts()).totals
        self._gone = Totals(
            self._gone.requests + totals.requests, self._gone.denied + totals.denied
        )
        self._sheets = {at: sheet for at, sheet in self._sheets.items() if at[1] != node}

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
                f"{self._file} holds no board that can be read ({error}); move it away to begin anew"
            ) from error

    def _require_writable(self) -> None:
        """Write the file once: who cannot do it now is told now, and not when somebody sets something."""
        if self._file is not None:
            try:
                _save(self._file, self._kept)
            except UnwritableError as error:
                raise ConfigError(str(error)) from error


def _save(path: Path, kept: dict[str, tuple[bytes, int | None]]) -> None:
    """Write the file anew."""
    rows = {
        name: (base64.b64encode(value).decode(), until_us)
        for name, (value, until_us) in kept.items()
    }
    try:
        replace_file(path, json.dumps({"format": 1, "kept": rows}).encode(), private=True)
    except OSError as error:
        raise UnwritableError(f"the board cannot be written to {path}: {error.strerror}") from error
