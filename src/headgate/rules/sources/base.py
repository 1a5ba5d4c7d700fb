"""The contract of a source of rules: it can be read, watched, and changed by one editor at a time.

A **source** can be read and watched; that is all a node needs to follow it. A **store** is a source that can also be
changed. Every read returns a `Snapshot`: all documents at one moment, with a version that only grows. Every change is
an `Edit` against the snapshot that its author saw; if anyone was faster, it changes nothing and names the other author
(`VersionConflict`). Every change is kept as a `HistoryEntry`, with the documents before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ...errors import HeadgateError

KEPT_ENTRIES: int = 100
"""How many changes a store remembers."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of documents written, and the total."""


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
    """A source that has lost all of its rules: more likely an accident than on purpose."""


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
    """The newest revision that deliberately removed every rule; 0 if none did."""

    @property
    def is_empty(self) -> bool:
        """Whether the absence of all rules is deliberate."""
        return self.emptied == self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All documents of a source at one moment."""

    version: int
    """The position in the source's own history: it only grows."""
    documents: Mapping[str, bytes] = field(repr=False)
    """By name, in order; each is a rule, or a file with many."""
    head: Head | None = None
    token: object = field(default=None, repr=False, compare=False)
    """Lets the source detect later whether anything has changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """One rule before and after; `None` if it did not or will not exist."""

    rule_id: str
    name: str
    """The name of its document."""
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
    """Whether removing all rules is deliberate."""
    text: bytes | None = field(default=None, repr=False)
    """The whole file as its author wrote it; a file store then keeps all of its comments."""


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
    """The version after the change, if it has just been made; 0 in a history."""
    warning: str = ""
    """A note for its author, for example that comments were lost."""


class Source(Protocol):
    """A place that rules are read from. Its methods may block, and may be called from any thread."""

    ordered: bool
    """Whether an older version proves that a server lags; the owner of a file may restore an older one."""
    separate: bool
    """Whether documents are independent, so that a bad one does not affect the others."""
    warnings: tuple[str, ...]
    """Warnings for the operator about this source, after it was read: that anyone may write to it, for example."""

    def __str__(self) -> str:
        """Where it is, without secrets."""

    @property
    def in_touch(self) -> bool:
        """Whether a change would be noticed now."""

    def read(self) -> Snapshot:
        """The current content; raises `SourceError`."""

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from some thread, whenever something may have changed, or `in_touch` has."""

    def close(self) -> None:
        """Close connections and end threads."""

    def again(self) -> Source:
        """A fresh source for the same place, for a forked child; it does not touch the old one."""


class RuleStore(Source, Protocol):
    """A source that can be changed."""

    def read_for_edit(self) -> Snapshot:
        """Like `read`, after finishing what an editor may have left half done."""

    def rules_in(self, snapshot: Snapshot) -> Mapping[str, tuple[str, str]]:
        """The rules that can be changed one by one: by rule id, the document's name and the rule as JSON text."""

    def name_for(self, rule_id: str) -> str:
        """The name of the document for a new rule."""

    def commit(
        self, edit: Edit, expected: Snapshot, *, progress: Progress | None = None
    ) -> HistoryEntry:
        """Make the change, if nothing has changed since `expected` was read; else raise `VersionConflict`."""

    def history(self, limit: int = KEPT_ENTRIES) -> Sequence[HistoryEntry]:
        """The newest changes, newest first."""

    def text_after(self, revision: int) -> bytes | None:
        """The whole file after a revision, if the store keeps files; else `None`."""


def _rebuild_source_error(
    kind: type[SourceError],
    message: str,
    transient: bool,  # noqa: FBT001 - pickle
) -> SourceError:
    return kind(message, transient=transient)
