"""Collects errors: reading continues after one, so that all of them can be fixed at once.

Types and bounds are checked first, then the meaning of values. A value that failed the first check is replaced by
`INVALID`, so that it neither hides errors next to it nor causes more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .document import path_text
from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .document import Document, Step

At: TypeAlias = "tuple[At, Step] | None"
"""A place in a document, from the inside out: cheap to create for every value, and used only if one is wrong."""

MAX_ERRORS: Final = 1_000
MAX_SHOWN: Final = 60
INVALID: Final[Any] = object()
"""Replaces a value that has an error."""


class ErrorCollector:
    """The errors of one document, in order of discovery, without duplicates."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0
        """The number of errors added, including dropped duplicates: callers compare it to detect a new error."""
        self._found: dict[tuple[str, str], Callable[[], Problem]] = {}
        self._places: set[tuple[Step, ...]] = set()

    def add(self, at: At, message: str, remedy: str) -> None:
        """Add an error. One in the file's defaults occurs with every rule, and is kept once."""
        self.count += 1
        path = steps_of(at)
        self._places.add(tuple(path))
        if len(self._found) >= MAX_ERRORS:
            return
        text = path_text(path)
        document = self.document
        self._found.setdefault(
            (text, message),
            lambda: Problem(document.name, document.line(path), text, message, remedy),
        )

    def valid(self, value: Any, at: At) -> Any:
        """The value at `at`, with `INVALID` wherever an error was added since the last call."""
        places, self._places = self._places, set()
        around = {place[:end] for place in places for end in range(len(place))}

        def kept(value: Any, place: tuple[Step, ...]) -> Any:
            if place in places:
                return INVALID
            if place not in around:
                return value
            if type(value) is list:
                return [kept(item, (*place, i)) for i, item in enumerate(value)]
            return {key: kept(item, (*place, key)) for key, item in value.items()}

        return kept(value, tuple(steps_of(at)))

    def problems(self) -> list[Problem]:
        """All errors, including the document's own, by line."""
        found = [*self.document.problems, *(make() for make in self._found.values())]
        return sorted(found, key=lambda problem: problem.line)


def steps_of(at: At) -> Sequence[Step]:
    """The steps from the document's root to a place."""
    steps: list[Step] = []
    while at is not None:
        at, step = at
        steps.append(step)
    return steps[::-1]


def shown(value: object) -> str:
    """A value in recognisable form, short, and without terminal control characters."""
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_SHOWN else value[: MAX_SHOWN - 1] + "…")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return str(value)
