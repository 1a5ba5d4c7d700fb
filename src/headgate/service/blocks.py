"""Blocks: the keys that a node denies right now, and why. Bounded; those that end last are kept.

A key is blocked when even a cost of one does not pass, and stays so until the moment that the denial named. It leaves the list
when that has come, or as soon as something of it passes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import NEVER, CalendarWindow, Concurrency
from ..board.model import Block
from ..charge import shown
from ..rate import span_text

if TYPE_CHECKING:
    from ..decision import Context, Decision

MAX_BLOCKS: Final = 1_000
ROOM: Final = 4 * MAX_BLOCKS
"""How far the list may grow before it is cut, so that cutting costs little for each."""
FOR_EVER_US: Final = 2**53 - 1


class Blocks:
    """The keys that one node denies."""

    def __init__(self) -> None:
        self._denied: dict[str, tuple[int, Any, Context]] = {}

    def __bool__(self) -> bool:
        return bool(self._denied)

    def update(self, last: dict[str, Decision], denied_ns: dict[str, int], epoch_ns: int) -> None:
        """Take in a batch: the last decision of every key, and when those were denied that were."""
        blocked = self._denied
        for key in blocked.keys() & last.keys():
            if last[key][2][0]:
                del blocked[key]
        at_us = 0
        for key, at_ns in denied_ns.items():
            _, limit, answer, context = last[key]
            if answer[0] or answer[1] > 0:
                continue  # It passed again, or only this cost was too much.
            at_us = (at_ns + epoch_ns) // 1000
            if answer[2] != NEVER:
                blocked[key] = (at_us + answer[2], limit, context)
            elif context.source == "ban":
                blocked[key] = (FOR_EVER_US, limit, context)
        if len(blocked) >= ROOM:
            self._cut(at_us)

    def forget(self, key: str) -> None:
        """It is not blocked any more, if it was."""
        self._denied.pop(key, None)

    def live(self, now_us: int) -> list[Block]:
        """Those that are still blocked."""
        self._cut(now_us)
        return [
            Block(shown(key), until_us, _reason_of(limit, context[2], context[0]))
            for key, (until_us, limit, context) in self._denied.items()
        ]

    def _cut(self, now_us: int) -> None:
        """Drop what is over, and of the rest those that end first."""
        live = {key: denied for key, denied in self._denied.items() if denied[0] > now_us}
        if len(live) > MAX_BLOCKS:
            ends = sorted([denied[0] for denied in live.values()], reverse=True)
            last_us = ends[MAX_BLOCKS]
            longer = {key: denied for key, denied in live.items() if denied[0] > last_us}
            for key, denied in live.items():  # Those of one fixed window end together.
                if len(longer) >= MAX_BLOCKS:
                    break
                if denied[0] == last_us:
                    longer[key] = denied
            live = longer
        self._denied = live


@lru_cache(maxsize=1_024)
def _reason_of(limit: Any, rule: str | None, source: str) -> str:
    """Why a key is denied, in words: `rule login: 5 per minute, sliding_window`."""
    if source == "closed":
        return "the store does not answer, and the rule is closed then"
    if source == "ban":
        return "banned"
    if isinstance(limit, Concurrency):
        counted = f"{limit.limit} at the same time"
    elif isinstance(limit, CalendarWindow):
        counted = f"{limit.limit} per calendar {limit.calendar.period}"
    else:
        counted = f"{limit.limit} per {span_text(limit.window_us)}"
    return f"{'' if rule is None else f'rule {rule}: '}{counted}, {limit.name}"
