"""Reading documents that are independent of each other: a bad one keeps its previous version, the others still change.

If each rule is a separate node, a mistake in one does not affect the others. It is reported, and the node's previous
version stays in use; without one the rule is left out. If two nodes have the same rule id, the first by name wins. If
too many rules apply to one request, the last ones are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..matching.charging import TOO_MANY
from ..pacing import no_pause
from .fields import MAX_RULES
from .overlap import overflowing
from .parse import parse_documents
from .problems import Problem, RulesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..model import Rule
    from .parsed import Parsed

SHOWN: Final = 3
"""How many bad documents are listed by name."""


@dataclass(frozen=True, slots=True)
class IndependentDocuments:
    """The result of reading each document separately."""

    parsed: Parsed
    documents: Mapping[str, bytes]
    """The content in use for each: the current one, or the previous one."""
    errors: Mapping[str, Problem]
    """Errors of documents whose current content cannot be used, by name."""

    def problem(self) -> str | None:
        """What is wrong, in words, and what is used instead; `None` if nothing is."""
        if not self.errors:
            return None
        given = [
            f"{name!r} {'stays as it was' if name in self.documents else 'is left out'}: {error}"
            for name, error in list(self.errors.items())[:SHOWN]
        ]
        more = len(self.errors) - SHOWN
        return "; ".join(given) + (f"; and {more} more" if more > 0 else "")


def parse_separately(
    documents: Mapping[str, bytes],
    before: Mapping[str, bytes],
    *,
    pause: Callable[[], None] = no_pause,
) -> IndependentDocuments:
    """Read all documents as one set, with the content in `before` for bad ones.

    Raises `RulesError` if there are documents but none can be used.
    """
    bad: RulesError | None = None
    try:
        parsed = parse_documents(documents.items(), pause=pause)
    except RulesError as error:
        bad = error
    else:
        if len(parsed.rules) >= len(documents):  # The usual case, and three times as fast.
            return IndependentDocuments(parsed, documents, {})
    taken = _AcceptedDocuments(pause)
    errors: dict[str, Problem] = {}
    for name, data in documents.items():
        problem = taken.add(name, data)
        if problem is not None:
            errors[name] = problem
    errors.update(taken.drop_overflowing())
    for name in errors:
        if name in before and before[name] != documents[name]:
            taken.add(name, before[name])
    taken.drop_overflowing()
    if not taken.documents:
        raise bad or RulesError(list(errors.values()))
    used = dict(sorted(taken.documents.items()))
    errors = dict(sorted(errors.items()))
    return IndependentDocuments(parse_documents(used.items(), pause=pause), used, errors)


class _AcceptedDocuments:
    """Documents that are valid together."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.documents: dict[str, bytes] = {}
        self._pause = pause
        self._rules: dict[str, Sequence[Rule]] = {}
        self._owners: dict[str, str] = {}
        """The document of each rule, by rule id."""

    def add(self, name: str, data: bytes) -> Problem | None:
        """Add a document, or return what is wrong with it."""
        try:
            rules = parse_documents([(name, data)], pause=self._pause).rules.rules
        except RulesError as error:
            return error.problems[0]
        if not rules:
            return Problem(name, 0, "", "it has no rule", "write one, or remove it")
        for rule in rules:
            owner = self._owners.get(rule.rule_id)
            if owner is not None:
                message = f"the id {rule.rule_id!r} is already in {owner}"
                return Problem(name, 0, "rule_id", message, "give one of them another id")
        if len(self._owners) + len(rules) > MAX_RULES:
            remedy = "use `overrides`, or names in path patterns"
            return Problem(name, 0, "", f"a set has at most {MAX_RULES} rules", remedy)
        self.documents[name] = data
        self._rules[name] = rules
        self._owners.update((rule.rule_id, name) for rule in rules)
        return None

    def drop_overflowing(self) -> dict[str, Problem]:
        """Remove rules that are too many for one request; returns their errors."""
        left: dict[str, Problem] = {}
        while rules := overflowing(self._in_order(), self._pause):
            for name in {self._owners[rule.rule_id] for rule in rules}:
                message = f"is one too many: {TOO_MANY}"
                left[name] = Problem(
                    name, 0, "match", message, "make fewer of them, or let one `stop`"
                )
                del self.documents[name]
                for rule in self._rules.pop(name):
                    del self._owners[rule.rule_id]
        return left

    def _in_order(self) -> list[Rule]:
        rules = [rule for some in self._rules.values() for rule in some]
        return sorted(rules, key=lambda rule: (rule.priority, rule.rule_id))
