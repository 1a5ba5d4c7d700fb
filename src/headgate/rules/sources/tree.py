"""TreeStore: one node per rule, and changes of any size that appear atomic. ZooKeeper and etcd are built on it.

Both can change several nodes in one transaction, on the condition that certain nodes have not changed. Next to the
rules is the *head*, a node that every change made here rewrites. An edit requires that the head is still the one that
its author saw, and so is every rule that it touches: of two editors one wins.

A change too large for one transaction works like this. Its entry is written first, where nobody looks. One transaction
then announces it in the head (`writing`), under the conditions above; further ones write the rules, and the last one
completes the head. A reader in between restores the previous rules from the entry, and so sees the complete old set. An
editor that dies half-way has lost nothing: the entry is complete, and the next editor finishes it.

Every transaction depends on versions, so none can be carried out twice. So a transaction without an answer can be sent
again, if the head shows that it was not carried out.

Other tools do not know about the head. Their changes are noticed all the same, but are not part of the history.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from .base import (
    KEPT_ENTRIES,
    Edit,
    Head,
    HistoryEntry,
    Progress,
    Snapshot,
    SourceError,
    VersionConflict,
)
from .journal import (
    ENTRY_NAME,
    JournalHead,
    as_bytes,
    as_text,
    conflict_with,
    decode_entry,
    decode_mark,
    encode_entry,
    encode_mark,
    entry_name,
    entry_of,
    escape,
    finished,
    forgettable,
    nonce_of,
    parts_of,
    unescape,
)
from .tree_nodes import ConcurrentChange, State, TreeNode, UnknownOutcome, Write, rule_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATIENCE_SECONDS: Final = 15.0
"""How long an editor without an answer tries to find out the outcome of its change."""
PAUSE_SECONDS: Final = 0.1
OVERHEAD: Final = 200
"""Bytes of a write in a transaction besides its data; an upper bound."""


class TreeStore(ABC):
    """The logic of a store; subclasses carry out reads and transactions."""

    ordered = True
    separate = True
    warnings: tuple[str, ...] = ()
    max_value_bytes: ClassVar[int]
    max_transaction_bytes: ClassVar[int]
    max_transaction_writes: ClassVar[int]

    @abstractmethod
    def _load(self) -> State:
        """Read everything, at one moment; raises `SourceError`."""

    @abstractmethod
    def _transact(
        self, writes: Sequence[Write], head: TreeNode | None, new_head: bytes | None
    ) -> int:
        """Carry out all writes or none, if head and nodes are as given; returns the resulting version.

        Raises `ConcurrentChange` if a condition did not hold, `UnknownOutcome` if there was no answer.
        """

    @abstractmethod
    def _keep_part(self, name: str, data: bytes) -> None:
        """Write a part of an entry; idempotent."""

    @abstractmethod
    def _entry_names(self) -> list[str]:
        """The names of all entries and parts."""

    @abstractmethod
    def _entries(self, names: Sequence[str]) -> list[bytes]:
        """The content of these entries or parts; raises `SourceError` if one is missing."""

    @abstractmethod
    def _forget(self, names: Sequence[str]) -> None:
        """Delete entries and parts."""

    # Reading

    def read(self) -> Snapshot:
        """The current rules; during an incomplete change, those before it."""
        state = self._load()
        documents = {name: state.rules[name].data for name in sorted(state.rules)}
        mark = self._mark(state)
        if mark is not None and mark.writing:
            for change in self._entry(mark.head.revision).changes:
                documents.pop(change.name, None)
                if change.before is not None:
                    documents[change.name] = as_bytes(change.before)
            documents = dict(sorted(documents.items()))
            head = mark.previous
        else:
            head = None if mark is None else mark.head
        return Snapshot(version=state.version, documents=documents, head=head, token=state)

    def read_for_edit(self) -> Snapshot:
        """Like `read`, after finishing what an editor may have left half done."""
        self._finish()
        return self.read()

    def rules_in(self, snapshot: Snapshot) -> Mapping[str, tuple[str, str]]:
        """By rule id, the node's name and its text; of two nodes with one id, the second goes by its node's name."""
        found: dict[str, tuple[str, str]] = {}
        for name, data in snapshot.documents.items():
            rule_id = rule_id_of(name, data)
            while rule_id in found:
                rule_id = (
                    f"{unescape(name)} (again)" if rule_id == unescape(name) else unescape(name)
                )
            found[rule_id] = (name, as_text(data))
        return found

    def name_for(self, rule_id: str) -> str:
        """The name of the node for a new rule."""
        return escape(rule_id)

    def history(self, limit: int = KEPT_ENTRIES) -> Sequence[HistoryEntry]:
        """The newest changes, newest first."""
        head = self.read().head
        names = [name for name in self._entry_names() if ENTRY_NAME.fullmatch(name)]
        complete = [int(name) for name in names if head is not None and int(name) <= head.revision]
        return [self._entry(revision) for revision in sorted(complete, reverse=True)[:limit]]

    def text_after(self, revision: int) -> bytes | None:
        """Always `None`: there is no file here."""
        return None

    # Writing

    def commit(
        self, edit: Edit, expected: Snapshot, *, progress: Progress | None = None
    ) -> HistoryEntry:
        """Make the change, if nothing has changed since `expected` was read; else raise `VersionConflict`."""
        self._require_small(edit)
        state = expected.token
        assert isinstance(state, State)
        revision = (expected.head.revision if expected.head else 0) + 1
        entry = entry_of(edit, revision)
        nonce = secrets.token_hex(8)
        data, parts = encode_entry(
            entry, nonce, whole=self.max_transaction_bytes // 2, part=self.max_value_bytes // 2
        )
        head = Head(
            revision=revision,
            author=edit.author,
            at=edit.at,
            action=edit.action,
            forced=revision if edit.forced else (expected.head.forced if expected.head else 0),
            emptied=revision if edit.emptied else 0,
        )
        writes = [Write("entry", entry_name(revision), data, None), *_writes(entry, state)]
        mark = JournalHead(head=head, nonce=nonce, previous=expected.head)
        if not parts and self._fits(writes):
            version = self._begin(writes, state, mark)
        else:
            for name, part in parts.items():
                self._keep_part(name, part)
            self._begin(writes[:1], state, replace(mark, writing=True))
            version = self._finish_announced(nonce, progress)
        if progress is not None:
            progress(len(edit.changes), len(edit.changes))
        self._prune(revision)
        return replace(entry, version=version)

    def _begin(self, writes: Sequence[Write], state: State, mark: JournalHead) -> int:
        """Carry out the transaction that decides who wins; returns the resulting version."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        unsure = False
        while True:
            try:
                return self._try(writes, state, mark)
            except VersionConflict:
                raise
            except SourceError as error:
                unsure = unsure or isinstance(error, UnknownOutcome)
                if not unsure:
                    raise
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"{self} does not answer; the change may have been made, 'headgate rules "
                        "history' shows whether it was"
                    ) from error
            time.sleep(PAUSE_SECONDS)

    def _try(self, writes: Sequence[Write], state: State, mark: JournalHead) -> int:
        try:
            return self._transact(writes, state.head, encode_mark(mark))
        except ConcurrentChange:
            now = self._load()
            if self._is_in(now, mark):  # By an earlier attempt, whose answer was lost.
                return now.version
            raise self._conflict(now, mark) from None

    def _finish_announced(self, nonce: str, progress: Progress | None) -> int:
        """Complete this editor's own change; if it cannot, its caller must know that others will."""
        try:
            return self._finish(nonce, progress=progress)
        except SourceError as error:
            raise SourceError(
                f"{error}; the change is announced and not yet complete: nodes have the rules before it, and "
                "the next 'headgate rules' command that changes any completes it first",
                transient=error.transient,
            ) from error

    def _finish(self, nonce: str | None = None, *, progress: Progress | None = None) -> int:
        """Complete the change that the head announces: our own, or that of an editor that died."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                state = self._load()
                mark = self._mark(state)
                if mark is None or not mark.writing or nonce not in (None, mark.nonce):
                    return state.version
                return self._roll_forward(state, mark, progress)
            except ConcurrentChange:
                # Another editor is finishing it too, or a node was changed with another tool.
                if time.monotonic() > deadline:
                    raise SourceError(f"{self} changes faster than it can be written") from None
            except SourceError as error:
                if not error.transient or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _roll_forward(self, state: State, mark: JournalHead, progress: Progress | None) -> int:
        entry = self._entry(mark.head.revision)
        writes = _writes(entry, state)
        batches = list(self._batches(writes)) or [[]]
        version = state.version
        for at, batch in enumerate(batches):
            last = at == len(batches) - 1
            version = self._transact(
                batch, state.head, encode_mark(finished(mark)) if last else None
            )
            if progress is not None:
                done = len(entry.changes) - sum(map(len, batches[at + 1 :]))
                progress(done, len(entry.changes))
        return version

    def _batches(self, writes: Sequence[Write]) -> Iterator[list[Write]]:
        batch: list[Write] = []
        for write in writes:
            if batch and not self._fits([*batch, write]):
                yield batch
                batch = []
            batch.append(write)
        if batch:
            yield batch

    def _fits(self, writes: Sequence[Write]) -> bool:
        size = sum(OVERHEAD + len(write.name) + len(write.data or b"") for write in writes)
        return (
            size <= self.max_transaction_bytes - 2 * OVERHEAD
            and len(writes) < self.max_transaction_writes
        )

    def _prune(self, revision: int) -> None:
        with contextlib.suppress(SourceError):  # The next change will do it.
            self._forget(forgettable(self._entry_names(), revision))

    def _require_small(self, edit: Edit) -> None:
        for change in edit.changes:
            size = len(as_bytes(change.after or ""))
            if size > self.max_value_bytes:
                raise SourceError(
                    f"the rule {change.rule_id!r} has {size:,} bytes and {self} takes "
                    f"{self.max_value_bytes:,} at most; nothing was written",
                    transient=False,
                )

    # Understanding

    def _mark(self, state: State) -> JournalHead | None:
        if state.head is None or not state.head.data:
            return None
        return decode_mark(state.head.data, f"the head of {self}")

    def _entry(self, revision: int) -> HistoryEntry:
        (data,) = self._entries([entry_name(revision)])
        where = f"revision {revision} of {self}"
        return decode_entry(data, self._entries(parts_of(data)), where)

    def _is_in(self, state: State, mark: JournalHead) -> bool:
        """Whether the change was made, perhaps followed by others."""
        now = self._mark(state)
        if now is None or now.head.revision < mark.head.revision:
            return False
        if now.head.revision == mark.head.revision:
            return now.nonce == mark.nonce
        (data,) = self._entries([entry_name(mark.head.revision)])
        return nonce_of(data) == mark.nonce

    def _conflict(self, state: State, mark: JournalHead) -> VersionConflict:
        now = self._mark(state)
        if now is None or now.head.revision < mark.head.revision:
            return VersionConflict(
                f"{self} was changed meanwhile, not through Headgate; nothing was written: look at it "
                "and try again"
            )
        return conflict_with(
            now.head, [change.rule_id for change in self._entry(now.head.revision).changes]
        )


def _writes(entry: HistoryEntry, state: State) -> list[Write]:
    """The writes that are still needed to complete the entry's change."""
    return [
        Write("rule", change.name, data, node)
        for change in entry.changes
        if (data := None if change.after is None else as_bytes(change.after))
        != ((node := state.rules.get(change.name)) and node.data)
    ]
