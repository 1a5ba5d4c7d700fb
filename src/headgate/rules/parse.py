"""From bytes to a rule set that works, or to everything that is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .model import Rule, RuleSet
    from .problem import Problem


@dataclass(frozen=True, slots=True)
class Case:
    """One entry under `tests:`, as it was written: plain JSON values."""

    file: str
    line: int
    path: str
    """Such as `tests[2]`."""
    value: Any


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was read: rules that work, what deserves a second look, and test cases that nobody has read yet."""

    rules: RuleSet
    warnings: tuple[Problem, ...] = ()
    cases: tuple[Case, ...] = ()


def parse_rules(
    data: bytes | str, name: str = "rules", *, pause: Callable[[], None] | None = None
) -> Parsed:
    """Read one document: a rule, a list of rules, or a file with `rules:` in it; JSON or YAML.

    `name` is the file's, for messages; `.json`, `.yaml` and `.yml` at its end say what it is, otherwise the content does.
    `pause` is called after every little piece of work, so that a thread can let others run. Raises `RulesError` with
    every problem that was found.
    """
    raise NotImplementedError


def parse_documents(
    items: Iterable[tuple[str, bytes]], *, pause: Callable[[], None] | None = None
) -> Parsed:
    """Read many documents, each with its name, as one set: sources that keep one rule per node use this.

    Rules of all documents are checked together: an id that is in two of them is an error that names both.
    """
    raise NotImplementedError


def parse_rule_document(document: Mapping[str, Any], name: str = "rule") -> Rule:
    """Read one rule that has been plain values all along, such as the body of a request."""
    raise NotImplementedError
