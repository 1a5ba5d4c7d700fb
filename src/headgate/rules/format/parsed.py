"""The result of reading documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .document import path_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..model import RuleSet
    from .document import Document
    from .problems import Problem


@dataclass(frozen=True, slots=True)
class Case:
    """One entry under `tests:`, unparsed."""

    document: Document
    index: int
    value: Any
    """Plain JSON values, of any shape."""

    @property
    def file(self) -> str:
        """The file it was written in."""
        return self.document.name

    @property
    def path(self) -> str:
        """For example `tests[2]`."""
        return path_text(("tests", self.index))

    @property
    def line(self) -> int:
        """Its line."""
        return self.document.line(("tests", self.index))


class Parsed:
    """The result of parsing: valid rules, warnings, and test cases that are not parsed yet."""

    def __init__(
        self, rules: RuleSet, cases: tuple[Case, ...], warn: Callable[[], Iterable[Problem]]
    ) -> None:
        self.rules = rules
        self.cases = cases
        self._warn = warn

    @cached_property
    def warnings(self) -> tuple[Problem, ...]:
        """Questionable rules. Computed on demand: a node that reloads does not need them."""
        return tuple(self._warn())
