"""Adaptive limiting on one node of a fleet: its monitor, and its part in the agreement. The board drives both.

Every second the board sends what this node has counted by rule, and returns what all nodes have counted and agreed on.
The overall traffic comes from the board's own counts, so nodes without adaptive limits are included.

    control = AdaptiveControl()
    board = Board(store, identity, report=control.report, control=control)
    limiter = AsyncLimiter("redis://…", adaptive=control)
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ..algorithms.adaptive import CANDIDATES
from ..board.model import Report
from ..board.store import ChoiceProposal, StoredChoice
from .agreement import Agreement, Proposal, from_bytes, to_bytes
from .guard import ChoosingGuard, CountingGuard
from .monitor import OVERALL, Monitor, rates_of
from .selector import DEFAULT_THRESHOLDS, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ..algorithms.adaptive import Adaptive
    from ..board.store import BoardPull
    from ..board.traffic import SecondCounts, TrafficRates
    from ..guards.base import Guard
    from .monitor import TrafficCount
    from .selector import Choice


class AgreedChoice:
    """The agreed choice of one scope, in the form that hits need: an index into `CANDIDATES`."""

    __slots__ = ("__weakref__", "index")

    def __init__(self, index: int) -> None:
        self.index = index


class AdaptiveControl:
    """Pass it to a `Board` and to limiters; `deciding(rule)` says which algorithm decides.

    With `counts=False` its guards count nothing, and the caller adds each decision to `scope(rule)`.
    """

    def __init__(self, thresholds: Thresholds = DEFAULT_THRESHOLDS, *, counts: bool = True) -> None:
        self._counts = counts
        self._chosen: WeakValueDictionary[str, AgreedChoice] = WeakValueDictionary()
        self.monitor = Monitor()
        self.agreement = Agreement(thresholds)
        self.rates: Mapping[str, TrafficRates] = {}
        """Rates of the last ten seconds over all nodes, by scope."""

    def guards(self) -> Sequence[Guard]:
        """See `Choices.guards`."""
        return [CountingGuard(self), ChoosingGuard(self)] if self._counts else [ChoosingGuard(self)]

    def chosen(self, limit: Adaptive, rule: str | None) -> AgreedChoice:
        """See `Choices.chosen`."""
        scope = rule or OVERALL
        known = self._chosen.get(scope)
        if known is None:
            known = self._chosen[scope] = AgreedChoice(self._index(scope))
        return known

    def counter(self, limit: Adaptive, rule: str | None) -> TrafficCount:
        """See `CountedChoices.counter`."""
        return self.scope(rule or OVERALL)

    def on_ask(self, limit: Adaptive, rule: str | None) -> Callable[[str, int], None]:
        """See `CountedChoices.on_ask`: choices change with the board's heartbeat, not with a request."""
        return _nothing

    def scope(self, rule: str) -> TrafficCount:
        """Where decisions of a rule are counted."""
        return self.monitor.counter(rule)

    def report(self) -> Report:
        """The overall traffic for the board, where these guards are the only counters."""
        return Report(self.monitor.totals())

    def deciding(self, rule: str = OVERALL) -> Choice:
        """Which algorithm decides for a rule, since when and why."""
        return self.agreement.deciding(rule)

    def known(self, rule: str = OVERALL) -> Choice:
        """The rule's own choice, even where the overall one decides."""
        return self.agreement.known(rule)

    def pin(
        self,
        rule: str,
        algorithm: str,
        now_us: int,
        by: str,
        reason: str = "",
        *,
        until_us: int = 0,
    ) -> ChoiceProposal:
        """The proposal that pins an algorithm; see `Board.propose`."""
        agreement = self.agreement
        wanted = agreement.pin_proposal(rule, algorithm, now_us, by, reason, until_us=until_us)
        return stored_proposal(wanted)

    def unpin(self, rule: str, now_us: int) -> ChoiceProposal | None:
        """The proposal that unpins; `None` if nothing is pinned."""
        proposal = self.agreement.unpin_proposal(rule, now_us)
        return None if proposal is None else stored_proposal(proposal)

    def keep_only(self, rules: Collection[str]) -> None:
        """The rules have changed to these."""
        self.monitor.keep_only(rules)
        self.agreement.keep_only(rules)
        self._follow()

    def strips(self, second: int) -> Mapping[str, SecondCounts]:
        """What was counted by rule, up to this second."""
        self.monitor.note(second)
        found = self.monitor.strips()
        found.pop(OVERALL, None)
        return found

    def process_pull(self, pulled: BoardPull, last: int) -> Iterator[ChoiceProposal]:
        """Take what the store says, and return the proposals."""
        if pulled.agreed is not None:
            self.agreement.update_all(
                {scope: from_bytes(*one) for scope, one in pulled.agreed.items()}
            )
            self._follow()
        lives = (
            {**pulled.scopes.get(life, {}), OVERALL: counts.strip}
            for life, counts in pulled.counts.items()
        )
        self.rates = rates_of(lives, last)
        for proposal in list(self.agreement.proposals(self.rates, pulled.now_us)):
            yield stored_proposal(proposal)

    def process_answer(self, scope: str, stored: StoredChoice) -> None:
        """Take the store's answer to a proposal."""
        self.agreement.update(scope, from_bytes(*stored))
        self._follow()

    def _follow(self) -> None:
        """Make the agreed choices visible to hits."""
        for scope, chosen in self._chosen.items():
            chosen.index = self._index(scope)

    def _index(self, scope: str) -> int:
        return CANDIDATES.index(self.deciding(scope).algorithm)


def stored_proposal(proposal: Proposal) -> ChoiceProposal:
    """A proposal in the form the store takes."""
    scope, expected_epoch, choice = proposal
    return ChoiceProposal(scope, expected_epoch, StoredChoice(choice.epoch, to_bytes(choice)))


def _nothing(_key: str, _cost: int) -> None:
    pass
