"""Opening live rules from a file, a URL, or a parsed rule set."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..matching.rulebook import Rulebook
from ..model import RuleSet
from ..sources.location import parse_location
from ..sources.opening import open_store
from .following import LiveRules
from .last_good import LastGood, default_folder
from .requirement import Requirement, anything

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class FixedRules:
    """Rules that stay as they are, with everything that `LiveRules` has."""

    version = 1
    revision = 0
    stale_seconds = 0.0
    problem: str | None = None
    refused = False
    alarm: str | None = None
    warnings: tuple[str, ...] = ()

    def __init__(self, rules: RuleSet | Rulebook, *, require: Requirement = anything) -> None:
        self.current = rules if isinstance(rules, Rulebook) else Rulebook(rules)
        require(self.current.rules)

    @property
    def rules(self) -> RuleSet:
        """The rules themselves."""
        return self.current.rules

    def subscribe(self, callback: Callable[[FixedRules], None]) -> Callable[[], None]:
        """Nothing will ever be told."""
        return self.close

    def refresh(self) -> None:
        """There is nothing to read again."""

    def close(self) -> None:
        """Nothing is followed."""


def open_rules(
    where: str | os.PathLike[str] | RuleSet | Rulebook,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    while_reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    require: Requirement = anything,
) -> LiveRules | FixedRules:
    """Rules that are followed until they are closed.

    `where` is a file, `zookeeper://…` or `etcd://…`; a `RuleSet` or a `Rulebook` stays as it is. `state_dir` is where a
    copy of the last good set is kept, to start with while the source is away. For servers that is by default
    `HEADGATE_STATE_DIR`, or else the user's own folder for such things; rules from a file are copied only if a folder
    is named in one of these two ways, for the file itself is near enough. Rules are read inside `while_reading()`, for
    programs that want to keep their garbage collector away meanwhile; `require` refuses those that cannot be honoured
    here.
    """
    if isinstance(where, RuleSet | Rulebook):
        return FixedRules(where, require=require)
    if not isinstance(where, str | os.PathLike):
        raise UsageError(f"rules must be a file, a URL, a RuleSet or a Rulebook, not {where!r}")
    named = where if isinstance(where, str) else Path(where)
    location = parse_location(named)
    if state_dir is not None:
        folder: Path | None = Path(state_dir)
    elif location.scheme == "file" and not os.environ.get("HEADGATE_STATE_DIR"):
        folder = None
    else:
        folder = default_folder()
    canonical = str(Path(location.path).absolute()) if location.scheme == "file" else str(location)
    last_good = None if folder is None else LastGood(folder, canonical)
    return LiveRules(
        open_store(named), last_good=last_good, while_reading=while_reading, require=require
    )
