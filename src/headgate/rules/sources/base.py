"""The contract of a source of rules: it can be read, watched, and changed by one editor at a time.

A **source** can be read and watched; that is all a node needs to follow it. A **store** is a source that can also be
changed. Every read gives a `Snapshot`: all documents as they were at one moment, with a version that only grows. Every
change is an `Edit` against the snapshot that its author looked at; if anybody was faster, it changes nothing and says
who (`VersionConflict`). Every change that was made is kept as an `HistoryEntry`, with the documents before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ...errors import HeadgateError

KEPT_ENTRIES: int = 100
"""How many changes a store remembers."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many of how many documents have been written."""


class SourceError(HeadgateError):
    """A source of rules could not be read or written.

    `transient` is true when the same call may work later.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_source_error, (type(self), str(self), self.transient)


class SourceLost(SourceError):  # noqa: N818 - it says what happened
    """A source that has no rules, where there were some: more likely an accident than a wish."""


class VersionConflict(SourceError):  # noqa: N818 - it says what happened, and to whom
    """Another change was made first; nothing was written. `head` is that change, if it is known."""

    def __init__(self, message: str, head: Head | None = None) -> None:
        super().__init__(message, transient=False)
        self.head = head

    def __reduce__(self) -> tuple[object, ...]:
        return VersionConflict, (str(self), self.head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest change that was made through Headgate."""

    revision: int
    """Counts changes, from 1."""
    author: str
    at: float
    """Seconds since the epoch, by the author's clock."""
    action: str
    """`push`, `set`, `delete` or `rollback`."""
    forced: int = 0
    """The newest revision that was forced past the change check; 0 if there is none."""
    emptied: int = 0
    """The newest revision whose author took out every rule, and said that this was meant; 0 if none did."""

    @property
    def is_empty(self) -> bool:
        """Whether there are to be no rules at all."""
        return self.emptied == self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All documents of a source at one moment."""

    version: int
    """Where in the source's own history this is: it only grows."""
    documents: Mapping[str, bytes] = field(repr=False)
    """By name, in order of their names; each is a rule, or a file with many."""
    head: Head | None = None
    token: object = field(default=None, repr=False, compare=False)
    """What the source needs in order to see later whether anything has changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """One rule before and after; `None` where there was or will be none."""

    rule_id: str
    name: str
    """Of the document that holds it."""
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A requested change, and its author."""

    action: str
    author: str
    at: float
    changes: tuple[RuleChange, ...]
    note: str = ""
    forced: bool = False
    emptied: bool = False
    """Whether there are to be no rules at all."""
    text: bytes | None = field(default=None, repr=False)
    """The whole file as its author wrote it; a store that is a file then keeps every comment in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A change that was made."""

    revision: int
    action: str
    author: str
    at: float
    changes: tuple[RuleChange, ...]
    note: str = ""
    forced: bool = False
    version: int = 0
    """The version that the change made, where it has just been made; 0 in a history."""
    warning: str = ""
    """What its author should know: that comments were lost, say."""


class Source(Protocol):
    """A place that rules are read from. Its methods may block, and may be called from any thread."""

    ordered: bool
    """Whether an older version is proof of a server that lags; a file may be put back by its owner."""
    separate: bool
    """Whether each document stands for itself, so that a bad one says nothing against the others."""
    warnings: tuple[str, ...]
    """Warnings for the operator about this source, once it has been read: that anyone may write to it, for example."""

    def __str__(self) -> str:
        """Where it is, without secrets."""

    @property
    def in_touch(self) -> bool:
        """Whether a change would be heard of now."""

    def read(self) -> Snapshot:
        """Everything as it is now; raises `SourceError`."""

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from some thread, whenever something may have changed, or `in_touch` has."""

    def close(self) -> None:
        """Let go of connections and threads."""

    def again(self) -> Source:
        """A fresh one of the same place, for a forked child; it touches nothing of the old one."""


class RuleStore(Source, Protocol):
    """A source that can be changed."""

    def read_for_edit(self) -> Snapshot:
        """As `read`, after finishing what an editor may have left half done."""

    def rules_in(self, snapshot: Snapshot) -> Mapping[str, tuple[str, str]]:
        """The rules that can be changed one by one: by rule id, the document's name and the rule as JSON text."""

    def name_for(self, rule_id: str) -> str:
        """The name of the document for a new rule."""

    def commit(
        self, edit: Edit, expected: Snapshot, *, progress: Progress | None = None
    ) -> HistoryEntry:
        """Make the change, if nothing has changed since `expected` was read; else raise `VersionConflict`."""

    def history(self, limit: int = KEPT_ENTRIES) -> Sequence[HistoryEntry]:
        """The newest changes, the newest first."""

    def text_after(self, revision: int) -> bytes | None:
        """The whole file as a revision left it, from a store that keeps files; else `None`."""


def _rebuild_source_error(
    kind: type[SourceError],
    message: str,
    transient: bool,  # noqa: FBT001 - pickle
) -> SourceError:
    return kind(message, transient=transient)
