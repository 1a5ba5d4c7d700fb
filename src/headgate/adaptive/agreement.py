"""How all nodes agree on one algorithm: what a node proposes, accepts and keeps. Pure.

The store holds one choice per scope. A proposal names the epoch it replaces and fails if the store has another one by
then (compare-and-set). If two nodes propose at the same time, one wins and the other takes the winner's choice.

    the store's epoch is mine, or newer     take what it says
    it is older than mine                   the store has lost data: propose my choice, under the next epoch
    the store does not answer               keep my choice, and propose nothing

So a node's epochs never decrease, nodes that reach the store agree after one exchange each, and a store that comes back
empty gets the choices again, including pins.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms.adaptive import CANDIDATES
from ..board.traffic import TrafficRates
from .monitor import OVERALL
from .selector import DEFAULT_THRESHOLDS, FIRST_CHOICE, Choice, Thresholds, pin, select, unpin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

NO_TRAFFIC: Final = TrafficRates(0.0, 0.0, 0.0)


class Proposal(NamedTuple):
    """Replace the choice of this scope, if its epoch is the expected one."""

    scope: str
    expected_epoch: int
    """0 if there is none."""
    choice: Choice


class Agreement:
    """What one node knows about the agreed choices, by scope."""

    def __init__(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> None:
        self.thresholds = thresholds
        self._choices: dict[str, Choice] = {}
        self._stored_epochs: dict[str, int] = {}
        self._watched: frozenset[str] | None = None

    def deciding(self, scope: str = OVERALL) -> Choice:
        """The choice that decides here: a rule's own, unless a person has pinned the overall one and not the rule's."""
        own, overall = self.known(scope), self.known(OVERALL)
        if own.epoch == 0 or (overall.pinned and not own.pinned):
            return overall
        return own

    def known(self, scope: str) -> Choice:
        """The choice of the scope itself, as last heard from the store."""
        return self._choices.get(scope, FIRST_CHOICE)

    def update_all(self, agreed: Mapping[str, Choice]) -> None:
        """Take all choices that the store holds."""
        self._stored_epochs = {scope: choice.epoch for scope, choice in agreed.items()}
        for scope, choice in agreed.items():
            self._accept(scope, choice)

    def update(self, scope: str, stored: Choice) -> None:
        """Take the store's choice for one scope: its answer to a proposal."""
        self._stored_epochs[scope] = stored.epoch
        self._accept(scope, stored)

    def proposals(self, rates: Mapping[str, TrafficRates], now_us: int) -> Iterator[Proposal]:
        """The choices this node proposes, given the store's choices and all nodes' traffic."""
        for scope in self._choices.keys() | rates.keys():
            current, stored = self.known(scope), self._stored_epochs.get(scope, 0)
            if stored < current.epoch:
                yield Proposal(scope, stored, current._replace(epoch=current.epoch + 1))
                continue
            wanted = select(current, rates.get(scope, NO_TRAFFIC), now_us, self.thresholds)
            if wanted is not current:
                yield Proposal(scope, stored, wanted)

    def pin_proposal(
        self,
        scope: str,
        algorithm: str,
        now_us: int,
        by: str,
        reason: str = "",
        *,
        until_us: int = 0,
    ) -> Proposal:
        """The proposal that pins an algorithm. If it is refused, take the answer and propose again."""
        choice = pin(self.known(scope), algorithm, now_us, by, reason, until_us=until_us)
        return self._proposed(scope, choice)

    def unpin_proposal(self, scope: str, now_us: int) -> Proposal | None:
        """The proposal that unpins; `None` if nothing is pinned."""
        current = self.known(scope)
        return self._proposed(scope, unpin(current, now_us)) if current.pinned else None

    def keep_only(self, scopes: Collection[str]) -> None:
        """Keep only these scopes and the overall one: the rules have changed."""
        self._watched = frozenset({OVERALL, *scopes})
        for scope in self._choices.keys() - self._watched:
            del self._choices[scope]

    def _proposed(self, scope: str, choice: Choice) -> Proposal:
        return Proposal(scope, self._stored_epochs.get(scope, 0), choice)

    def _accept(self, scope: str, stored: Choice) -> None:
        if self._watched is not None and scope not in self._watched:
            return  # A rule that is gone: otherwise nodes would send it to the store for ever.
        if stored.epoch and stored.epoch >= self.known(scope).epoch:
            self._choices[scope] = stored


def to_bytes(choice: Choice) -> bytes:
    """As it is stored, next to its epoch."""
    return json.dumps(choice[1:], separators=(",", ":")).encode()


def from_bytes(epoch: int, blob: bytes) -> Choice:
    """Read it back. A choice that only a newer version understands is read as the sliding window, with its epoch."""
    try:
        algorithm, since_us, reason, pinned_by, *more = json.loads(blob)
        until_us = int(more[0]) if more else 0
        if algorithm in CANDIDATES:
            return Choice(epoch, algorithm, int(since_us), str(reason), str(pinned_by), until_us)
    except (ValueError, TypeError):
        pass
    return FIRST_CHOICE._replace(epoch=epoch, reason="chosen by a newer version of Headgate")
