"""Measure what guards add to a hit: in memory, where the promise is 35 % at most, and on Redis."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import AsyncLimiter, FixedWindow, MemoryEngine
from headgate.board.model import BoardView
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.guards.key_settings import KeySettingsGuard
from headgate.guards.kill_switch import KillSwitch, KillSwitchGuard
from headgate.guards.stack import guarded
from tests.servers.redis import standalone

from ..harness import Contender, Race, facts, race, save, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.engines.base import AsyncEngine
    from headgate.guards.base import Guard

LIMIT = FixedWindow(1_000_000_000, 60_000_000)
KEYS = [f"user:{number}" for number in range(1_000)]
PROMISED = 35
AT_ONCE = 100


class EmptyBoard:
    """A board on which nobody has set anything."""

    view = BoardView()

    def now_us(self) -> int:
        """Nothing ends here."""
        return 0


def in_memory(rounds: int) -> Race:
    """A hit without guards, and behind those that every hit of a service passes."""
    switch, board = KillSwitchGuard(KillSwitch()), EmptyBoard()
    chains: dict[str, list[Guard]] = {
        "bare": [],
        "kill switch": [switch],
        "kill switch, bans": [switch, KeySettingsGuard(lambda: board)],
    }

    def contender(name: str, guards: list[Guard]) -> Contender:
        hit = guarded(MemoryEngine(), guards).bind(LIMIT)

        def run(keys: Any) -> None:
            for key in keys:
                hit(key, 1)

        return Contender(name, run, repeat=20)

    contenders = [contender(name, guards) for name, guards in chains.items()]
    return race(contenders, [KEYS] * (rounds + 1), 7)


def on_redis(url: str, rounds: int) -> Race:
    """A hit of a hundred at once, as an awaited engine packs them."""
    with asyncio.Runner() as runner:

        async def opened() -> dict[str, AsyncEngine]:
            patient = f"{url}?deadline=5"
            return {
                "bare": AsyncRedisEngine(patient),
                "raise": AsyncLimiter(patient).engine,
                "fallback": AsyncLimiter(patient, on_error="fallback", nodes=2).engine,
            }

        def contender(name: str, hit: Callable[[str, int], Any]) -> Contender:
            async def asked(keys: Any) -> None:
                for first in range(0, len(keys), AT_ONCE):
                    await asyncio.gather(*[hit(key, 1) for key in keys[first : first + AT_ONCE]])

            return Contender(name, lambda keys: runner.run(asked(keys)))

        engines = runner.run(opened())
        contenders = [contender(name, engine.bind(LIMIT)) for name, engine in engines.items()]
        outcome = race(contenders, [KEYS] * (rounds + 1), 7)
        for engine in engines.values():
            runner.run(engine.aclose())
        return outcome


def shown(title: str, outcome: Race) -> str:
    """A race as a table: what each costs more than the bare hit."""
    rows = [
        (name, f"{outcome.ns(name) / 1000:.2f}", f"{100 * added(outcome, name):.0f}%")
        for name in outcome.rounds
    ]
    return table(title, ("guards", "µs per hit", "added"), rows)


def added(outcome: Race, name: str) -> float:
    """How much of a bare hit the guards add to it."""
    return 1 / outcome.times_faster(name, "bare") - 1


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.guards", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="how often everybody has a turn")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    memory = in_memory(options.rounds)
    print(shown("memory", memory))
    with standalone("redis-7.0") as server:
        redis = on_redis(server.url, options.rounds)
    print(shown(f"Redis, {AT_ONCE} at once", redis))
    worst = 100 * added(memory, "kill switch, bans")
    print(f"\nin memory {worst:.0f} % are added, and {PROMISED} % are promised at most")
    raw = {"machine": facts(["headgate"]), "memory": memory.rounds, "redis": redis.rounds}
    save(options.out / "guards.json", raw)
    print(f"written: {options.out}/guards.json")


if __name__ == "__main__":
    main()
