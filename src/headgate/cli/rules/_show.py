"""How commands show problems with rules: one line each, as compilers do, so that editors can jump there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .._terminal import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...rules.format.problems import Problem


def show_problems(problems: Iterable[Problem], *, kind: str = "") -> None:
    """Write problems to stderr; `kind` labels those that are not errors."""
    for problem in problems:
        place = f"{problem.file}:{problem.line}" if problem.line else problem.file
        path = f" {problem.path}:" if problem.path else ""
        said = f"{problem.message}; {problem.remedy}"
        print(escaped(f"{place}:{path}{f' {kind}:' if kind else ''} {said}"), file=sys.stderr)


def problem_json(problem: Problem) -> dict[str, Any]:
    """A problem for programs."""
    return {
        "file": problem.file,
        "line": problem.line,
        "path": problem.path,
        "message": problem.message,
        "remedy": problem.remedy,
    }


def counted(number: int, word: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
