"""Problems of a rules file and their places: all of them at once, not just the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: its file, line and place, what is wrong and how to fix it."""

    file: str
    line: int
    """From 1; 0 if there is no line."""
    path: str
    """For example `rules[3].match.ip_subnet`; empty for the whole file."""
    message: str
    """What is wrong, with the value."""
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        where = f"{place}: {self.path}" if self.path else place
        return f"{where}: {self.message}; {self.remedy}"


class RulesError(ConfigError):
    """Rules that cannot be used. `problems` has every error that was found; nothing was changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[object, ...]:
        return RulesError, (self.problems,)
