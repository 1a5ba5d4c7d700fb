"""States that grow with what they hold: logs, and held slots. Their weight counts against the memory bound.

Other states have one size, so they are in plain dicts, which cost nothing extra. Every change of a table goes through
its dicts, so the weight is right after whatever is taken, moved or dropped.

When memory is full, logs are kept coarsely: those that grow are rewritten as few entries, which is stricter and never
admits more. Slots cannot be made smaller: `StateStore.counted` grants no more of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..algorithms import Concurrency, SlidingLog
from ._memory_budget import log_weight, slots_weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from ._state_store import StateStore
    from ._state_table import Place


class WeighedStates(dict[Any, Any]):
    """States by place, each weighed."""

    __slots__ = ("_coarser", "_store", "_weigh")

    def __init__(
        self,
        store: StateStore,
        weigh: Callable[[Any], int],
        coarser: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._weigh = weigh
        self._coarser = coarser

    def __setitem__(self, place: Place, state: State) -> None:
        weigh, store, before = self._weigh, self._store, self.get(place)
        more = weigh(state) if before is None else weigh(state) - weigh(before)
        if more:
            if self._coarser is not None and store.bytes + more > store.max_bytes:
                lighter = self._coarser(state)
                more += weigh(lighter) - weigh(state)
                state = lighter
            store.bytes += more
        dict.__setitem__(self, place, state)

    def update(self, moved: dict[Any, Any]) -> None:  # type: ignore[override]
        """Take over states that were elsewhere."""
        for place, state in moved.items():
            WeighedStates.__setitem__(self, place, state)

    def pop(self, place: Place, *default: Any) -> Any:
        """Drop a state."""
        if place in self:
            self._store.bytes -= self._weigh(self[place])
        return dict.pop(self, place, *default)

    def popitem(self) -> tuple[Any, Any]:
        """Take out any state."""
        place, state = dict.popitem(self)
        self._store.bytes -= self._weigh(state)
        return place, state


def weighed_states(
    kind: Callable[..., WeighedStates], store: StateStore, limit: Limit
) -> Callable[[], WeighedStates] | None:
    """What makes the dicts for states of a limit, if they are to be weighed."""
    if isinstance(limit, SlidingLog):
        return partial(kind, store, log_weight, limit.coarser)
    if isinstance(limit, Concurrency):
        return partial(kind, store, slots_weight)
    return None
