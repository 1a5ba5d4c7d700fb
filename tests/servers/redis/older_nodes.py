"""Nodes of an older version, which share a store with new ones while a fleet is upgraded.

They are engines of today that send yesterday's scripts: a file in `older/` takes the place of the one with its name.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.engines.redis import scripts
from headgate.engines.redis.scripts import Dialect, Script, Words
from headgate.engines.redis.sync import RedisEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate import Clock, Engine, Limit
    from headgate.charge import ChargeSet
    from headgate.decision import Decision
    from headgate.engines.base import EngineDescription, Hit, KeyPage, Usage

OLDER = Path(__file__).parent / "older"


@cache
def older_script(command: str) -> bytes:
    """The text of a command, with every file that has an older version replaced by that."""
    names = dict.fromkeys((*scripts._SHARED, command))
    files = [OLDER / f"{name}.lua" for name in names]
    texts = [
        file.read_text("utf-8") if file.exists() else scripts._file(name)
        for name, file in zip(names, files, strict=True)
    ]
    return "\n".join([*texts, f"return commands.{command}(KEYS, ARGV)\n"]).encode()


class OlderDialect(Dialect):
    """Sends the text of a script with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = False

    def words(self, script: Script) -> Words:
        return b"EVAL", older_script(script.name)


class OlderEngine(RedisEngine):
    """An engine of the older version."""

    def _open(self) -> None:
        self._dialect = OlderDialect()
        self._use_namespace("")
        super()._open()


class MixedEngines:
    """Every call is made by one engine or another, by chance, and all of them have to know what the others did."""

    blocking = True

    def __init__(self, engines: Sequence[Engine], seed: int = 0) -> None:
        self._engines = engines
        self._choose = random.Random(seed)
        self.clock: Clock = engines[0].clock

    @property
    def one(self) -> Engine:
        """The one whose turn it is."""
        return self._choose.choice(self._engines)

    @property
    def unguarded(self) -> Engine:
        return self.one

    def scoped(self, namespace: str) -> MixedEngines:
        return MixedEngines([engine.scoped(namespace) for engine in self._engines])

    def describe(self) -> EngineDescription:
        return self.one.describe()

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        bound = [engine.bind(limit, rule) for engine in self._engines]

        def hit(key: str, cost: int) -> Decision:
            return self._choose.choice(bound)(key, cost)

        return hit

    def bind_run(self, limit: Limit, rule: str | None = None) -> None:
        return None

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        return self.one.decide(requests)

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        return self.one.settle(token, actual)

    def withdraw(self, request: ChargeSet) -> None:
        self.one.withdraw(request)

    def leave_line(self, decision: Decision) -> None:
        self.one.leave_line(decision)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        return self.one.renew(key, limit, token, rule)

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        self.one.release(key, limit, token, rule)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        return self.one.usage(key, limit, rule)

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        self.one.reset(key, limit, rule)

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        return self._engines[0].list_keys(prefix, cursor, limit)  # A cursor is its maker's.

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def old_and_new(url: str, clock: Any = None, seed: int = 0) -> MixedEngines:
    """A node of either version, by chance."""
    return MixedEngines([RedisEngine(url, clock=clock), OlderEngine(url, clock=clock)], seed)
