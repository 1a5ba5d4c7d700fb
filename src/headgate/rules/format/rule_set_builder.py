"""Builds one rule set from one or many documents, and collects the errors of all of them."""

from __future__ import annotations

import json
from bisect import insort
from difflib import get_close_matches
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakValueDictionary

from ..matching.charging import TOO_MANY
from ..model import Rule, RuleSet
from ..pacing import no_pause, with_pauses
from .building.defaults import with_defaults
from .building.rule import INVALID_DEFAULTS, build_rule
from .document import path_text, read_document
from .error_collector import INVALID, ErrorCollector, shown, steps_of
from .fields import DEFAULTS, FILE, MAX_RULES, RULE
from .linting import lint
from .overlap import first_overlap
from .parsed import Case, Parsed
from .problems import Problem, RulesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .building.locations import Where
    from .document import Document
    from .error_collector import At

VERSION_DIGITS: Final = 16
SHOWN: Final = 3
SOME: Final = 64
"""How many texts are hashed at once."""
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), check_circular=False
).encode

Known: TypeAlias = "WeakValueDictionary[str, Rule]"
KNOWN: Final[Known] = WeakValueDictionary()
"""Rules in use anywhere, by content. New rule sets are mostly the old one with a few changes, and a rule with the same
content need not be checked and built again."""


def version_of(rules: Iterable[Rule], *, pause: Callable[[], None] = no_pause) -> str:
    """A short digest of the content of rules, in order: equal for equal sets, whatever they were read from."""
    return _digest((_CANONICAL(rule.document) for rule in rules), pause)


def _digest(texts: Iterable[str], pause: Callable[[], None]) -> str:
    digest = sha256()
    rest = iter(texts)
    while some := [*islice(rest, SOME)]:
        some.append("")
        digest.update("\n".join(some).encode())
        pause()
    return digest.hexdigest()[:VERSION_DIGITS]


class RuleSetBuilder:
    """All documents of one set, and what was found in them so far."""

    def __init__(self, pause: Callable[[], None], known: Known | None) -> None:
        """`known` is `None` for values that never were JSON: their JSON form would not be unique."""
        self._pause = pause
        self._known = known
        self._places: dict[str, tuple[Document, At]] = {}
        self._in_order: list[tuple[int, str, str, Rule]] = []
        """Priority and name, which define the order, and each rule with its content."""
        self._count = 0
        self._problems: list[Problem] = []
        self._cases: list[Case] = []
        self._names: list[str] = []

    def read(self, data: bytes | str, name: str) -> None:
        """Read one document; its errors are kept until all have been read."""
        try:
            document = read_document(data, name, pause=self._pause)
        except RulesError as error:
            self._names.append(name)
            self._problems += error.problems
        else:
            self.take(document)

    def take(self, document: Document, *, one_rule: bool = False) -> None:
        """Add the rules of a document: a rule, a list of rules, or a file with `rules`."""
        self._names.append(document.name)
        errors = ErrorCollector(document)
        value = document.value
        if type(value) is list:
            self._add_rules(value, None, {}, errors)
        elif value is None:
            errors.add(None, "there is nothing in it", "write at least one rule")
        elif type(value) is not dict:
            remedy = "write a rule, a list of rules, or `rules:` with a list below it"
            errors.add(None, f"expected rules, not {shown(value)}", remedy)
        elif one_rule or not _is_file(value):
            self._add_rule(value, None, {}, errors)
        else:
            self._add_file(value, errors)
        self._problems += errors.problems()

    def _add_file(self, value: dict[str, Any], errors: ErrorCollector) -> None:
        rules = value.get("rules")
        # The content of these two is checked below, rule by rule; here they only have to be known fields.
        outside: dict[str, Any] = {"rules": [] if type(rules) is list else rules, "defaults": None}
        FILE.check({**value, **outside}, None, errors)
        defaults = self._defaults(value.get("defaults") or {}, errors)
        tests = value.get("tests")
        if type(tests) is list:
            self._cases += [Case(errors.document, i, case) for i, case in enumerate(tests)]
        if type(rules) is list:
            self._add_rules(rules, (None, "rules"), defaults, errors)

    def _defaults(self, written: Any, errors: ErrorCollector) -> dict[str, Any]:
        """The defaults for every rule, as far as they are valid."""
        at = (None, "defaults")
        before = errors.count
        DEFAULTS.check(written, at, errors)
        if errors.count == before:
            valid: dict[str, Any] = written
            return valid
        valid = errors.valid(written, at)
        return INVALID_DEFAULTS if valid is INVALID else valid

    def _add_rules(
        self, rules: list[Any], at: At, defaults: dict[str, Any], errors: ErrorCollector
    ) -> None:
        for i, rule in enumerate(rules):
            if self._count > MAX_RULES:
                break
            rules[i] = None  # Freed one by one, not ten thousand of them at the end.
            self._add_rule(rule, (at, i), defaults, errors)

    def _add_rule(
        self, written: Any, at: At, defaults: dict[str, Any], errors: ErrorCollector
    ) -> None:
        self._pause()
        self._count += 1
        if self._count > MAX_RULES:
            message = f"this is rule {self._count}, but a set may have at most {MAX_RULES}"
            errors.add(at, message, "use `overrides`, or names in path patterns")
            return
        if type(written) is not dict:
            RULE.check(written, at, errors)
            return
        document = with_defaults(written, defaults)
        text = _text_of(document)
        known = self._known
        rule = None if known is None else known.get(text)
        if rule is None:
            before = errors.count
            RULE.check_fields(written, at, errors)
            if errors.count > before:
                document = with_defaults(errors.valid(written, at), defaults)
            rule = build_rule(document, at, _where(written, at, defaults), errors)
            if known is not None and rule is not None:
                known[text] = rule
        self._add_id(written.get("rule_id"), at, errors)
        if rule is not None and not errors.count:  # After one error, the whole set is refused.
            self._place(rule, text)

    def _place(self, rule: Rule, text: str) -> None:
        place = (rule.priority, rule.rule_id, text, rule)
        if not self._in_order or self._in_order[-1] < place:  # Most files are in order.
            self._in_order.append(place)
        else:  # One by one: sorting ten thousand at once would block other threads.
            insort(self._in_order, place)

    def _add_id(self, rule_id: Any, at: At, errors: ErrorCollector) -> None:
        """Record the use of an id, even for a rule with other errors; no other rule may use it."""
        if type(rule_id) is not str:
            return
        document = errors.document
        other, other_at = self._places.setdefault(rule_id, (document, at))
        if other_at is not at or other is not document:
            line = other.line([*steps_of(other_at), "rule_id"])
            there = f"{other.name}:{line}" if line else other.name
            message = f"the id {shown(rule_id)} is already in {there}"
            errors.add((at, "rule_id"), message, "give one of them another id")

    def finish(self) -> Parsed:
        """The set, or all errors."""
        if self._problems:
            raise RulesError(self._problems)
        rules = tuple([rule for _, _, _, rule in with_pauses(self._in_order, self._pause)])
        overlapping = first_overlap(rules, self._pause)
        if overlapping:
            raise RulesError([self._overlap_problem(overlapping)])
        version = _digest((text for _, _, text, _ in self._in_order), self._pause)
        self._in_order.clear()
        return Parsed(RuleSet(rules, version), tuple(self._cases), lambda: self._warnings(rules))

    def _warnings(self, rules: Sequence[Rule]) -> Iterable[Problem]:
        for warning in lint(rules, self._pause):
            if warning.rule is None:
                name = self._names[0] if len(self._names) == 1 else "rules"
                yield Problem(name, 0, "", warning.message, warning.remedy)
            else:
                yield self._problem(warning.rule, warning.field, warning.message, warning.remedy)

    def _overlap_problem(self, overlapping: Sequence[Rule]) -> Problem:
        names = ", ".join(rule.rule_id for rule in overlapping[:SHOWN])
        message = (
            f"is one too many: {TOO_MANY}, and {len(overlapping)} rules apply together ({names}, …)"
        )
        return self._problem(
            overlapping[-1], "match", message, "make fewer of them, or let one `stop`"
        )

    def _problem(self, rule: Rule, field: str, message: str, remedy: str) -> Problem:
        """A problem of a rule, at the place where it was written."""
        document, at = self._places[rule.rule_id]
        steps = [*steps_of(at), *field.split(".")]
        return Problem(document.name, document.line(steps), path_text(steps), message, remedy)


def _text_of(document: dict[str, Any]) -> str:
    """A rule's content as text; empty for values that are not JSON, which will be refused."""
    try:
        return _CANONICAL(document)
    except (TypeError, ValueError, RecursionError):
        return ""


def _is_file(value: dict[str, Any]) -> bool:
    """Whether a mapping is, or was meant to be, a file with rules and not a single rule."""
    if "rules" in value or "rule_id" in value:
        return "rules" in value
    known = [*RULE.by_name, *FILE.by_name]
    meant = [get_close_matches(name, known, n=1) for name in value]
    return any(names[0] in FILE.by_name for names in meant if names)


def _where(written: Mapping[str, Any], at: At, defaults: Mapping[str, Any]) -> Where:
    """Where each field of a rule was written: in the rule or in the defaults, under any of its names.

    A field that is missing is reported for the rule as a whole.
    """

    def place(name: str) -> At:
        if name in written:
            return (at, name)
        field = RULE.by_name[name]
        for values, here in ((written, at), (defaults, (None, "defaults"))):
            for known in (field.name, *field.aliases):
                if known in values:
                    return (here, known)
        return at

    return place
