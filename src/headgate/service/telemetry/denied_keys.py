"""Blocks: the keys that a node denies right now, and why. Bounded; those that last longest are kept.

A key is blocked by a limit if not even a cost of one passes, until the time given in the denial. A block belongs to one
key, one rule and one limit: it is removed when its time is over, or as soon as something passes that same limit. Bans
are not blocks; they are on the board.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...algorithms import NEVER, CalendarWindow, Concurrency
from ...board.model import Block
from ...charge import shown
from ...rate import span_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...decision import Context, Decision

MAX_BLOCKS: Final = 1_000
ROOM: Final = 4 * MAX_BLOCKS
"""How far the list may grow before it is cut, so that cutting is cheap per entry."""
NOT_BLOCKS: Final = frozenset({"shadow", "ban"})
"""Sources of denials that are not blocks: a shadow denies nobody, and a ban is not a limit."""

Which: TypeAlias = tuple[str | None, str]
"""What blocks a key: a rule, if any, and the identity of a limit."""
Denied: TypeAlias = "tuple[int, Any, Context, int]"
"""Until when, in the node's time; by which limit; in which context; and how often so far."""


class DeniedKeys:
    """The keys that one node denies."""

    def __init__(self) -> None:
        self._denied: dict[str, dict[Which, Denied]] = {}
        self._many = 0

    def __bool__(self) -> bool:
        return bool(self._denied)

    def update(
        self, decisions: Iterable[Decision], denied_ns: Sequence[int], epoch_ns: int
    ) -> None:
        """Process decisions, in order; there is a time for each denial."""
        blocked, times = self._denied, iter(denied_ns)
        at_us = 0
        for decision in decisions:
            if not decision.answer[0]:
                at_us = (next(times) + epoch_ns) // 1000
                for one in decision.several or (decision,):
                    self._note(one, at_us)
            elif decision.several:
                for one in decision.several:
                    if one.key in blocked:
                        self._note(one, at_us)
            elif decision.key in blocked:  # All that most decisions cost.
                self._note(decision, at_us)
        if self._many >= ROOM:
            self._cut(at_us)

    def _note(self, decision: Decision, at_us: int) -> None:
        """Process the answer of one limit: either something passed it, or its key is blocked from then on."""
        key, limit, context = decision.key, decision.limited_by, decision.context
        allowed, remaining, retry_after_us, _, _ = decision.answer
        own = self._denied.get(key)
        which = (context[2], limit.identity)
        if allowed:
            if own is not None and own.pop(which, None) is not None:
                self._many -= 1
                if not own:
                    del self._denied[key]
        elif not remaining and retry_after_us != NEVER and context[0] not in NOT_BLOCKS:
            if own is None:
                own = self._denied[key] = {}
            known = own.get(which)
            if known is None:
                self._many += 1
            many = 1 if known is None else known[3] + 1
            own[which] = (at_us + retry_after_us, limit, context, many)

    def forget(self, key: str) -> None:
        """Remove all blocks of a key."""
        self._many -= len(self._denied.pop(key, ()))

    def limits(self, key: str, now_us: int) -> list[tuple[str | None, Any]]:
        """What blocks a key: pairs of rule, if any, and limit."""
        own = self._denied.get(key, {})
        return [(which[0], one[1]) for which, one in own.items() if one[0] > now_us]

    def live(self, now_us: int, offset_us: int = 0) -> list[Block]:
        """The current blocks; their times are converted to a clock that is `offset_us` ahead."""
        self._cut(now_us)
        return [
            Block(
                shown(key),
                until_us + offset_us,
                _reason_of(limit, context[2], context[0]),
                context[2],
                limit.window_us,
                many,
            )
            for key, own in self._denied.items()
            for until_us, limit, context, many in own.values()
        ]

    def _cut(self, now_us: int) -> None:
        """Drop blocks that are over, and then those that end first."""
        every = [
            (denied[0], key, which, denied)
            for key, own in self._denied.items()
            for which, denied in own.items()
            if denied[0] > now_us
        ]
        if len(every) > MAX_BLOCKS:
            every.sort(key=itemgetter(0), reverse=True)
            del every[MAX_BLOCKS:]
        self._denied = {}
        for _, key, which, denied in every:
            self._denied.setdefault(key, {})[which] = denied
        self._many = len(every)


@lru_cache(maxsize=1_024)
def _reason_of(limit: Any, rule: str | None, source: str) -> str:
    """Why a key is denied, in words: `rule login: 5 per minute, sliding_window`."""
    if source == "closed":
        return "the store does not answer, and the rule's on_error is closed"
    return f"{'' if rule is None else f'rule {rule}: '}{limit_in_words(limit)}, {limit.decider}"


def limit_in_words(limit: Any) -> str:
    """A limit in words: `5 per minute`."""
    if isinstance(limit, Concurrency):
        return f"{limit.limit} at the same time"
    if isinstance(limit, CalendarWindow):
        return f"{limit.limit} per calendar {limit.calendar.period}"
    return f"{limit.limit} per {span_text(limit.window_us)}"
