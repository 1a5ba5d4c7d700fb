"""What is fuzzed. A target is a module with `check(data)`, which raises `AssertionError` when a promise is broken.

To add one, write such a module, name it here, and put a few inputs that are worth starting from into `corpus/<name>/`.
An input that broke a promise goes there, too, when the promise holds again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

Check: TypeAlias = Callable[[bytes], None]

HERE: Final = Path(__file__).parent
RULE_FILES: Final = HERE.parent / "unit/rules/format"


class Target(NamedTuple):
    """Something that reads bytes from outside."""

    name: str
    ms_per_64_kb: float = 50.0
    """How much CPU reading 64 KB may take, on top of what any input takes."""
    executions: int = 100_000
    """How many inputs `make fuzz` makes."""
    more: tuple[Path, ...] = ()
    """Where else inputs to start from are kept."""

    @property
    def check(self) -> Check:
        """Its promise; imported late, so that what it reads with can be watched."""
        found: Check = importlib.import_module(f"tests.fuzz.{self.name}").check
        return found

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where inputs to start from are kept."""
        return (HERE / "corpus" / self.name, *self.more)

    def corpus(self) -> list[bytes]:
        """What to start from."""
        files = (path for folder in self.folders for path in sorted(folder.iterdir()))
        return [path.read_bytes() for path in files if path.is_file()]


TARGETS: Final = {
    target.name: target
    for target in (
        Target("rates"),
        # PyYAML's reader is pure Python; and each document is read three times, as three kinds.
        Target("rules", 3_000.0, more=(RULE_FILES / "good", RULE_FILES / "bad")),
        Target("wire"),
        Target("batches", 400.0),  # Every check of a batch is sent once more alone.
        Target("paths"),
        # Read three times, and every command is answered.
        Target("resp", 500.0, executions=1_000_000),
        Target("http", 500.0),  # A strict reader in Python reads everything once more.
    )
}
