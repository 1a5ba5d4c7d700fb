"""The rulebook: a compiled rule set, which finds the rules for a request without testing each of them.

All rules that match apply, in order of priority, lowest number first. A rule with `stop` ends the list if it is
enforced for this request: a shadow, an exemption or a skipped identifier must not switch off the rules after it.

If a path has several readings, every rule that matches any of them applies: we cannot know which reading the server
behind us takes.

A rulebook never changes; new rules are a new one. It is pure, and safe to share between threads.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ...charge import MAX_STEPS, Charge
from ...charge_kind import ChargeKind
from ..pacing import no_pause, with_pauses
from .charging import fitting
from .condition_index import ANY_METHOD, ConditionIndex, IndexedRule
from .conditions import takes_method
from .explain import Trace, explain
from .normalized_request import NormalizedRequest, require_request
from .path_trie import PathTrie
from .paths import BadPathError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Rule, RuleSet
    from ..request import Request

BadPaths: TypeAlias = Literal["deny", "pass"]
"""What happens to a request whose path cannot be read."""

OTHER: Final = 1
"""The bit of a method that no rule names."""
_rank = attrgetter("rank")


class Rulebook:
    """Rules, compiled. `pause` is called between small pieces of that work, so that a thread can let others run."""

    def __init__(self, rules: RuleSet, *, pause: Callable[[], None] = no_pause) -> None:
        self.rules = rules
        self.version = rules.version
        self.by_id: dict[str, Rule] = {}
        self._bits = {"HEAD": 2}  # Some rules mean it without naming it.
        self._masks: dict[frozenset[str], int] = {}
        self._anywhere = ConditionIndex()
        self._by_path: PathTrie[ConditionIndex] = PathTrie(ConditionIndex)
        headers: set[str] = set()
        methods: set[frozenset[str]] = set()
        for rule in with_pauses(rules.rules, pause):
            self.by_id[rule.rule_id] = rule
            methods.add(rule.match.methods)
            _add_headers(rule, headers)
        self._headers = frozenset(headers)
        for method in frozenset().union(*methods):
            self._bits.setdefault(method, 2 << len(self._bits))
        for rank, rule in enumerate(rules.rules):
            if rule.enabled:
                pattern = rule.match.path_pattern
                index = self._anywhere if pattern is None else self._by_path.at(pattern)
                index.add(IndexedRule(rule, rank, self._mask(rule.match.methods)))
            pause()
        for index in with_pauses((self._anywhere, *self._by_path.values()), pause):
            index.build(pause)

    def match(self, request: Request) -> tuple[Rule, ...]:
        """The rules whose conditions hold, in order; also those that leave the request alone."""
        require_request(request)
        normalized = NormalizedRequest(request, self._headers)
        found = {entry for one in normalized.readings() for entry in self._matching(one)}
        return tuple(entry.rule for entry in sorted(found, key=_rank))

    def charges(self, request: Request, *, bad_paths: BadPaths = "pass") -> tuple[Charge, ...]:
        """The charges of the request: one for each rule that applies, in order.

        A rule that counts by path makes one for each reading of the path. A path that cannot be read raises
        `BadPathError` with `bad_paths="deny"`; otherwise only rules without a path pattern apply to it.

        An engine takes at most 128 limits in one call. If more are enforced, the request is denied; shadows beyond that
        are left out. `explain` says so.
        """
        try:
            normalized = NormalizedRequest(request, self._headers)
            if normalized.path is not None:
                return (
                    self._all_charges(normalized)
                    if normalized.others
                    else self._charges(normalized)
                )
            if bad_paths == "pass":
                return self._charges(normalized)
        except (AttributeError, TypeError, ValueError):
            require_request(request)  # Looked at only when something went wrong.
            raise
        raise BadPathError(normalized.refusal)

    def _charges(self, normalized: NormalizedRequest) -> tuple[Charge, ...]:
        charges: list[Charge] = []
        steps = 0
        for entry in self._matching(normalized):
            builder = entry.builder or entry.make_builder()
            charge = builder.charge(normalized)
            if charge is None:
                continue
            steps += len(charge.limits)
            charges.append(charge)
            if builder.stop and charge.kind is ChargeKind.TAKE:
                break
        return tuple(charges) if steps <= MAX_STEPS else fitting(charges)

    def _all_charges(self, normalized: NormalizedRequest) -> tuple[Charge, ...]:
        """The charges of all readings of a path; a charge that two readings share is made once."""
        found: dict[tuple[int, str], Charge] = {}
        for one in normalized.readings():
            for entry in self._matching(one):
                builder = entry.builder or entry.make_builder()
                charge = builder.charge(one)
                if charge is not None:
                    found.setdefault((entry.rank, charge.key), charge)
                    if builder.stop and charge.kind is ChargeKind.TAKE:
                        break
        in_order = sorted(found, key=lambda rank_and_key: rank_and_key[0])
        return fitting([found[one] for one in in_order])

    def explain(self, request: Request) -> Trace:
        """Why each rule applies to this request, or does not."""
        require_request(request)
        return explain(self.rules, request)

    def pieces(self, pause: Callable[[], None] = no_pause) -> list[object]:
        """All objects it is made of, to be released one by one: freeing them all at once would stall other threads."""
        pieces: list[object] = []
        for rule in self.rules.rules:
            pieces.append(rule)
            pause()
        for index in (self._anywhere, *self._by_path.values()):
            pieces += (index, *index.entries())
            pause()
        nodes = []
        for node in self._by_path.nodes():
            nodes.append(node)
            pause()
        # Leaves last, since the list is emptied from its end: freeing the root first would free everything below it at
        # once.
        pieces += reversed(nodes)
        return pieces

    def _matching(self, normalized: NormalizedRequest) -> list[IndexedRule]:
        method = self._bits.get(normalized.method, OTHER)
        indexes = [self._anywhere]
        if normalized.path is not None:
            indexes += self._by_path.find(normalized.segments)
        found = [
            entry
            for index in indexes
            for entry in (index.candidates(normalized) if index.lookups else index.unindexed)
            if entry.methods & method and (not entry.conditions or entry.matches(normalized))
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
