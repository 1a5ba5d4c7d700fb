"""The rulebook: a rule set made ready, that finds the rules for a request without asking each of them.

All rules that match apply, from the lowest priority to the highest. One with `stop` ends the list, if it is really enforced
for this request: a shadow, an exemption or a skipped identifier must not switch off the rules behind it.

A rulebook never changes; new rules are a new one. It is pure, and safe to share between threads.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ..charge import MAX_STEPS, Charge, Kind
from .conditions import takes_method
from .counting import fitting
from .explain import Trace, explain
from .facts import Facts, require_request
from .pacing import spaced, unhurried
from .shelf import ANY_METHOD, Entry, Shelf
from .trie import Trie

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Rule, RuleSet
    from .request import Request

OTHER: Final = 1
"""The bit of a method that no rule names."""
_rank = attrgetter("rank")


class Rulebook:
    """Rules, compiled. `pause` is called between small pieces of that work, so that a thread can let others run."""

    def __init__(self, rules: RuleSet, *, pause: Callable[[], None] = unhurried) -> None:
        self.rules = rules
        self.version = rules.version
        self.by_id: dict[str, Rule] = {}
        self._bits = {"HEAD": 2}  # Some rules mean it without naming it.
        self._masks: dict[frozenset[str], int] = {}
        self._anywhere = Shelf()
        self._by_path: Trie[Shelf] = Trie(Shelf)
        headers: set[str] = set()
        methods: set[frozenset[str]] = set()
        for rule in spaced(rules.rules, pause):
            self.by_id[rule.rule_id] = rule
            methods.add(rule.match.methods)
            _add_headers(rule, headers)
        self._headers = frozenset(headers)
        for method in frozenset().union(*methods):
            self._bits.setdefault(method, 2 << len(self._bits))
        for rank, rule in enumerate(rules.rules):
            if rule.enabled:
                pattern = rule.match.path_pattern
                shelf = self._anywhere if pattern is None else self._by_path.at(pattern)
                shelf.add(Entry(rule, rank, self._mask(rule.match.methods)))
            pause()
        for shelf in spaced((self._anywhere, *self._by_path.values()), pause):
            shelf.file(pause)

    def match(self, request: Request) -> tuple[Rule, ...]:
        """The rules whose conditions hold, in order; also those that leave the request alone."""
        require_request(request)
        facts = Facts(request, self._headers)
        return tuple(entry.rule for entry in self._matching(facts))

    def charges(self, request: Request) -> tuple[Charge, ...]:
        """What the request is charged: one charge for each rule that applies, in order.

        An engine takes at most 128 limits in one go. If more are enforced, the request is charged what nobody has: it is
        denied. Shadows beyond that are left out. A trace says so.
        """
        try:
            return self._charges(Facts(request, self._headers))
        except (AttributeError, TypeError, ValueError):
            require_request(request)  # Looked at only when something went wrong.
            raise

    def _charges(self, facts: Facts) -> tuple[Charge, ...]:
        charges: list[Charge] = []
        steps = 0
        for entry in self._matching(facts):
            counting = entry.counting or entry.count()
            charge = counting.charge(facts)
            if charge is None:
                continue
            steps += len(charge.limits)
            charges.append(charge)
            if counting.stop and charge.kind is Kind.TAKE:
                break
        return tuple(charges) if steps <= MAX_STEPS else fitting(charges)

    def explain(self, request: Request) -> Trace:
        """Why each rule applies to this request, or does not."""
        require_request(request)
        return explain(self.rules, request)

    def pieces(self, pause: Callable[[], None] = unhurried) -> list[object]:
        """All that it is made of. Whoever lets go of these one by one, last, holds nobody up as one big end would."""
        pieces: list[object] = []
        for rule in self.rules.rules:
            pieces.append(rule)
            pause()
        for shelf in (self._anywhere, *self._by_path.values()):
            pieces += (shelf, *shelf.entries())
            pause()
        nodes = []
        for node in self._by_path.nodes():
            nodes.append(node)
            pause()
        # From the leaves to the root: the last goes first, and must not take all those below it with it.
        pieces += reversed(nodes)
        return pieces

    def _matching(self, facts: Facts) -> list[Entry]:
        method = self._bits.get(facts.method, OTHER)
        shelves = [self._anywhere]
        if facts.path is not None:
            shelves += self._by_path.find(facts.segments)
        found = [
            entry
            for shelf in shelves
            for entry in (shelf.candidates(facts) if shelf.drawers else shelf.unfiled)
            if entry.methods & method and (not entry.asks or entry.takes(facts))
        ]
        if len(found) > 1:
            found.sort(key=_rank)
        return found

    def _mask(self, methods: frozenset[str]) -> int:
        """The bits of the methods that a rule is about."""
        if not methods:
            return ANY_METHOD
        mask = self._masks.get(methods)
        if mask is None:
            means = (bit for method, bit in self._bits.items() if takes_method(methods, method))
            mask = self._masks[methods] = sum(means)
        return mask


def _add_headers(rule: Rule, headers: set[str]) -> None:
    """Note the headers that a rule looks at."""
    for test in rule.match.headers:
        headers.add(test.name)
    for match in rule.exempt.matches:
        headers.update(test.name for test in match.headers)
    for part in rule.identifier.parts:
        if part.kind == "header":
            headers.add(part.name)
    if rule.cost.header is not None:
        headers.add(rule.cost.header)
