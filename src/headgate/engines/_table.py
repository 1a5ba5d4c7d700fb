"""A table: the states of all keys that share namespace, rule and identity, in bounded memory.

**Two generations.** `young` holds what was written lately, `old` what was young before. Now and then the
generations turn: young becomes old and a new young begins. Every new key pays for a few steps of sweeping: it
pops entries off `old`, drops those that are idle (which loses nothing) and moves the others to `young`.
No thread, no pause, no entry looked at twice in a generation.

**Overflow.** When the engine is full of keys that are not idle, a new key shares one of 65,536 ordinary states,
picked by a keyed hash. Strangers may then be counted together, but nobody's limit is forgotten, least of all
that of a key which is at its limit. A key stays with its shared state until that is idle.

**Letting go.** An engine lets go of tables in which nothing is left (see `Core`). Whoever still holds one finds it
`dropped`, and asks the engine for the table that counts now before anything is written to it.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ..algorithms import Limit, State
    from .state_file import TableName

SHARED_STATES = 65_536
SECRET_BYTES = 16
MIN_TURN_US = 1_000_000

Place: TypeAlias = str | int
"""Where a state is kept: under a key of its own, or under the number of a shared state."""


class Table:
    """States by key. Not safe under threads: the engine holds its lock."""

    __slots__ = (
        "dropped",
        "limit",
        "lines",
        "name",
        "old",
        "several",
        "shared",
        "turn_us",
        "turned_us",
        "young",
    )

    def __init__(self, name: TableName, limit: Limit) -> None:
        self.name = name
        self.limit = limit
        """The one that last asked to take units; any with this identity can read all of the states."""
        self.several: bool | None = None
        """Whether that was more than one; nothing if it was none at all."""
        self.dropped = False
        """Whether the engine has let go of the table."""
        self.young: dict[str, State] = {}
        self.old: dict[str, State] = {}
        self.shared: dict[int, State] = {}
        self.lines: dict[Place, int] = {}
        """When the last one in line may start, for places where somebody waits."""
        self.turn_us = max(limit.window_us, MIN_TURN_US)
        self.turned_us = 0

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    @property
    def unused(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.young or self.old or self.shared)

    def note(self, limit: Limit) -> None:
        """Remember a limit that units are taken with, and whether it is one of several."""
        if self.several is None:
            self.several = False
        elif limit != self.limit:
            self.several = True
        self.limit = limit

    def get(self, key: str) -> State:
        """The state of a key, whatever generation it is in."""
        state = self.young.get(key)
        return self.old.get(key) if state is None else state

    def put(self, key: str, state: State) -> None:
        """Keep a state; it is young again."""
        self.young[key] = state
        if self.old:
            self.old.pop(key, None)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self.young.pop(key, None)
        self.old.pop(key, None)
        self.lines.pop(key, None)

    def set_line(self, place: Place, ends_us: int) -> None:
        """Note when the last one in line may start; 0 when nobody waits any more."""
        if ends_us:
            self.lines[place] = ends_us
        else:
            self.lines.pop(place, None)

    def drop_shared(self, index: int) -> None:
        """Forget a shared state."""
        self.shared.pop(index, None)
        self.lines.pop(index, None)

    def sweep(self, now_us: int, steps: int, *, hurry: bool = False) -> int:
        """Look at up to `steps` old entries, drop the idle ones, and say how many those were.

        Once everything old is swept a new generation begins when it is time, or at once in a hurry.
        """
        old, young = self.old, self.young
        if not old and not hurry and 0 <= now_us - self.turned_us < self.turn_us:
            return 0
        idle_at_us = self.limit.idle_at_us
        dropped = 0
        for _ in range(min(steps, len(old))):
            key, state = old.popitem()
            if idle_at_us(state) > now_us:
                young[key] = state
            else:
                dropped += 1
        if not old and (hurry or not 0 <= now_us - self.turned_us < self.turn_us):
            self.old, self.young = young, {}
            self.turned_us = now_us
            self.lines = {key: at_us for key, at_us in self.lines.items() if at_us > now_us}
        return dropped

    def sweep_shared(self, now_us: int, steps: int) -> None:
        """Drop up to `steps` shared states that are idle, the oldest first, until one is not."""
        idle_at_us = self.limit.idle_at_us
        for index, state in list(islice(self.shared.items(), steps)):
            if idle_at_us(state) > now_us:
                break
            self.drop_shared(index)


def shared_index(key: str, secret: bytes) -> int:
    """Which shared state a key falls into; nobody who lacks the secret can choose it."""
    return int.from_bytes(blake2b(key.encode(), key=secret, digest_size=2).digest(), "big")
