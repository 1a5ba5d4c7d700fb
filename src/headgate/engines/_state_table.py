"""A table: the states of all keys that share namespace, rule and identity, in bounded memory.

**Two generations.** `young` holds what was written lately, `old` what was young before. Now and then the
generations turn: young becomes old and a new young begins. Every new key pays for a few steps of sweeping: it
pops entries off `old`, drops those that are idle (which loses nothing) and moves the others to `young`.
No thread, no pause, no entry looked at twice in a generation.

**Overflow.** When the engine is full of keys that are not idle, a new key shares one of 65,536 ordinary states, picked
by a keyed hash. Unrelated keys may then be counted together, but no limit is forgotten. A key keeps its shared state
until that is idle. Shared states also have a bound; beyond it, all new keys share one more state.

**Dropping.** An engine drops empty tables (see `_state_store.py`). Code that still holds one finds it `dropped`, and
asks the engine for the current table before it writes.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ._line import Line
from ._memory_budget import weight_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from .state_file import TableName

SHARED_STATES = 65_536
LAST_SHARED = SHARED_STATES
"""The state of all keys for which there is no room even among the shared ones."""
SECRET_BYTES = 16
MIN_TURN_US = 1_000_000

Place: TypeAlias = str | int
"""Where a state is kept: under a key of its own, or under the number of a shared state."""


class StateTable:
    """States by key. Not safe under threads: the engine holds its lock."""

    __slots__ = (
        "bytes",
        "dropped",
        "grace_us",
        "limit",
        "lines",
        "name",
        "new_states",
        "old",
        "several",
        "shared",
        "stands_in",
        "turn_us",
        "turned_us",
        "young",
    )

    def __init__(
        self,
        name: TableName,
        limit: Limit,
        *,
        clock_steps: bool,
        new_states: Callable[[], dict[Any, State]] = dict,
    ) -> None:
        self.name = name
        self.new_states = new_states
        """Makes what states are kept in: a dict, or one that notes what is written to it by `[]`, or popped."""
        self.limit = limit
        """The one that last asked to take units; any with this identity can read all of the states."""
        self.several: bool | None = None
        """Whether that was more than one; nothing if it was none at all."""
        self.stands_in = False
        """Whether it counts for windows for which there was no room."""
        self.dropped = False
        """Whether the engine has let go of the table."""
        self.young: dict[str, State] = new_states()
        self.old: dict[str, State] = {}
        self.shared: dict[int, State] = new_states()
        self.bytes = 0
        """What its keys weigh."""
        self.lines: dict[Place, Line] = {}
        """The lines of states that have waiting callers."""
        self.grace_us = limit.max_lead_us if clock_steps else 0
        """For how long an idle state is kept: while the clock may step back behind it, it tells the time of its key."""
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
        elif not limit.counts_like(self.limit):
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

    def line(self, place: Place, now_us: int) -> Line | None:
        """The line of that state; `None` if no caller waits."""
        line = self.lines.get(place)
        return line if line is not None and line.ends_us > now_us else None

    def new_line(self, place: Place) -> Line:
        """An empty line."""
        line = self.lines[place] = Line()
        return line

    def drop_shared(self, index: int) -> None:
        """Forget a shared state."""
        self.shared.pop(index, None)
        self.lines.pop(index, None)

    def live(self, state: State, now_us: int) -> State:
        """What to keep of a state, cut to now if it is too far ahead; `None` if it has been idle for long enough."""
        limit = self.limit
        seen, _ = limit.seen(state, now_us)
        ends_us = max(limit.idle_at_us(seen), limit.latest_us(seen))
        return seen if ends_us + self.grace_us > now_us else None

    def sweep(self, now_us: int, steps: int, *, hurry: bool = False) -> int:
        """Look at up to `steps` old entries, drop the idle ones, and say how many those were.

        Once everything old is swept a new generation begins when it is time, or at once in a hurry.
        """
        old, young = self.old, self.young
        if not old and not hurry and 0 <= now_us - self.turned_us < self.turn_us:
            return 0
        dropped = 0
        for _ in range(min(steps, len(old))):
            key, state = old.popitem()
            live = self.live(state, now_us)
            if live is None:
                dropped += 1
                self.bytes -= weight_of(key)
            else:
                young.update({key: live})  # Moved, not written: see `new_states`.
        if not old and (hurry or not 0 <= now_us - self.turned_us < self.turn_us):
            self.old, self.young = young, self.new_states()
            self.turned_us = now_us
            self.lines = {at: line for at, line in self.lines.items() if line.ends_us > now_us}
        return dropped

    def sweep_shared(self, now_us: int, steps: int) -> None:
        """Drop up to `steps` shared states that are idle, the oldest first, until one is not."""
        for index, state in list(islice(self.shared.items(), steps)):
            live = self.live(state, now_us)
            if live is not None:
                self.shared[index] = live
                break
            self.drop_shared(index)


def shared_index(key: str, secret: bytes) -> int:
    """The shared state of a key; without the secret, a caller cannot choose it."""
    return int.from_bytes(blake2b(key.encode(), key=secret, digest_size=2).digest(), "big")
