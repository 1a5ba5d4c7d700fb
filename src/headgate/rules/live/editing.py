"""Changing the rules of a store: planned and checked as a whole, then made completely or not at all.

A plan is made against the current rules. It holds the complete new rule set, already parsed, and the objections of the
change check. Carrying it out fails if the rules have changed since.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ..format.independent_documents import IndependentDocuments, parse_separately
from ..format.parse import parse_documents, parse_rules
from ..format.problems import Problem, RulesError
from ..sources.base import (
    Edit,
    HistoryEntry,
    Progress,
    RuleChange,
    RuleStore,
    Snapshot,
    VersionConflict,
)
from ..sources.journal import as_bytes
from .change_check import ChangeRefused, RuleDiff, difference, objections

if TYPE_CHECKING:
    from ..model import RuleSet


NOTHING_LEFT: Final = "no rule is left, so nothing would be limited"


def remedy(option: str) -> str:
    """How to confirm the change."""
    return f"run it again with {option}; nothing was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """A change that would work."""

    store: RuleStore
    snapshot: Snapshot
    action: str
    changes: tuple[RuleChange, ...]
    rules: RuleSet
    """All rules, as they would be."""
    base: str = ""
    """The version of the rules that are there now; empty if there are none that can be read."""
    objections: tuple[str, ...] = ()
    """The objections of the change check."""
    warnings: tuple[Problem, ...] = ()
    text: bytes | None = field(default=None, repr=False)
    forced: bool = False

    @property
    def empties(self) -> bool:
        """Whether there would be no rules at all."""
        return not self.rules.rules

    @property
    def difference(self) -> RuleDiff:
        """Which rules come, go and change."""
        return difference(
            {one.rule_id: one.before for one in self.changes if one.before is not None},
            {one.rule_id: one.after for one in self.changes if one.after is not None},
        )

    @property
    def changes_nothing(self) -> bool:
        """Whether everything is already as it should be."""
        return not self.changes and self.text in (None, *self.snapshot.documents.values())

    def require_allowed(self, *, force: bool, allow_empty: bool = False) -> None:
        """Raise `ChangeRefused` if the change check objects and the change is not forced.

        An empty rule set needs a separate option.
        """
        if self.empties:
            if not allow_empty:
                raise ChangeRefused([NOTHING_LEFT], remedy("--allow-empty"))
        elif self.objections and not force and not self.forced:
            raise ChangeRefused(self.objections, remedy("--force"))

    def make(
        self,
        *,
        author: str,
        at: float,
        note: str = "",
        force: bool = False,
        allow_empty: bool = False,
        progress: Progress | None = None,
    ) -> HistoryEntry:
        """Make the change; `ChangeRefused` means it needs `force`, `VersionConflict` that another change came first."""
        self.require_allowed(force=force, allow_empty=allow_empty)
        edit = Edit(
            action=self.action,
            author=author,
            at=at,
            changes=self.changes,
            note=note,
            forced=force or self.forced or self.empties,
            emptied=self.empties,
            text=self.text,
        )
        return self.store.commit(edit, self.snapshot, progress=progress)


class Editor:
    """Plans changes of one store. With `look_only` nothing is ever written, not even to mend what was left half done.

    With `expected_revision` there is a plan only while the store is at that revision; else `VersionConflict` is raised.
    """

    def __init__(
        self, store: RuleStore, *, look_only: bool = False, expected_revision: int | None = None
    ) -> None:
        self._store = store
        self._look_only = look_only
        self._expected_revision = expected_revision

    def push(self, data: bytes, name: str) -> EditPlan:
        """Put these rules in the place of all that are there; raises `RulesError` if they are bad."""
        parsed = parse_rules(data, name)
        snapshot = self._read()
        after = {rule.rule_id: json.dumps(_plain(rule.document)) for rule in parsed.rules}
        try:
            before = self._store.rules_in(snapshot)
        except RulesError:
            before = {}  # Bad rules are there to be replaced.
        return self._plan(
            "push", snapshot, before, after, warnings=parsed.warnings, text=data, rules=parsed.rules
        )

    def set(self, documents: Sequence[Mapping[str, Any]]) -> EditPlan:
        """Add these rules, or put them in the place of those with the same ids."""
        return self._set(self._read(), documents)

    def _set(self, snapshot: Snapshot, documents: Sequence[Mapping[str, Any]]) -> EditPlan:
        before = self._store.rules_in(snapshot)
        after = {rule_id: text for rule_id, (_, text) in before.items()}
        for document in documents:
            after[str(document["rule_id"])] = json.dumps(_plain(document))
        return self._plan("set", snapshot, before, after)

    def set_fields(self, rule_id: str, fields: Mapping[str, Any]) -> EditPlan:
        """Change some fields of one rule; `match.methods` names a field inside another, `None` removes one.

        The id stays: under another one it would be another rule, which begins to count from nothing.
        """
        if fields.get("rule_id", rule_id) != rule_id:
            raise UsageError(
                f"the id of {rule_id!r} cannot be changed; add a rule under the new id, and delete this one"
            )
        snapshot = self._read()
        before = self._store.rules_in(snapshot)
        self._require_known([rule_id], before, "give a FILE to add one")
        document = json.loads(before[rule_id][1])
        for name, value in fields.items():
            _put(document, name, value)
        return self._set(snapshot, [document])

    def delete(self, rule_ids: Sequence[str]) -> EditPlan:
        """Take these rules out."""
        snapshot = self._read()
        before = self._store.rules_in(snapshot)
        self._require_known(rule_ids, before)
        after = {
            rule_id: text for rule_id, (_, text) in before.items() if rule_id not in set(rule_ids)
        }
        return self._plan("delete", snapshot, before, after)

    def rollback(self, revision: int | None = None) -> EditPlan:
        """Restore the rules of `revision`; without one, those before the newest change.

        The change check accepts it, unless no rule would be left: these rules were in force before, and a rollback
        is urgent.
        """
        snapshot = self._read()
        history = self._store.history()
        target = _target(revision, history, str(self._store))
        try:
            before = self._store.rules_in(snapshot)
        except RulesError:
            before = {}
        text = self._store.text_after(target)
        if text is not None:
            parsed = parse_rules(text, str(self._store))
            after = {rule.rule_id: json.dumps(_plain(rule.document)) for rule in parsed.rules}
        else:
            after = _undone(before, [entry for entry in history if entry.revision > target])
        return self._plan("rollback", snapshot, before, after, text=text, forced=True)

    def _read(self) -> Snapshot:
        store, expected_revision = self._store, self._expected_revision
        snapshot = store.read() if self._look_only else store.read_for_edit()
        revision = 0 if snapshot.head is None else snapshot.head.revision
        if expected_revision not in (None, revision):
            by = "" if snapshot.head is None else f", by {snapshot.head.author}"
            raise VersionConflict(
                f"{store} is at revision {revision}{by}, not at {expected_revision}; nothing was "
                "written: look at it and try again",
                snapshot.head,
            )
        return snapshot

    def _plan(
        self,
        action: str,
        snapshot: Snapshot,
        before: Mapping[str, tuple[str, str]],
        after: Mapping[str, str],
        *,
        rules: RuleSet | None = None,
        warnings: Sequence[Problem] = (),
        text: bytes | None = None,
        forced: bool = False,
    ) -> EditPlan:
        now = self._rules_now(snapshot)
        if rules is None:
            changed = {one.rule_id for one in self._changes(before, after)}
            read = parse_separately({name: as_bytes(one) for name, one in after.items()}, {})
            _require_sound(read, changed, before)
            rules = read.parsed.rules
            warnings = [*read.parsed.warnings, *read.errors.values()]
        found: Sequence[str] = ()
        if not forced or not after:
            found = objections(now, rules)
        return EditPlan(
            store=self._store,
            snapshot=snapshot,
            action=action,
            changes=tuple(self._changes(before, after)),
            rules=rules,
            base="" if now is None else now.version,
            objections=tuple(found),
            warnings=tuple(warnings),
            text=text if self._keeps_text(snapshot) else None,
            forced=forced and bool(after),
        )

    def _keeps_text(self, snapshot: Snapshot) -> bool:
        return isinstance(snapshot.token, str)

    def _changes(
        self, before: Mapping[str, tuple[str, str]], after: Mapping[str, str]
    ) -> Iterable[RuleChange]:
        for rule_id in sorted(before.keys() | after.keys()):
            name, was = before.get(rule_id, (self._store.name_for(rule_id), None))
            now = after.get(rule_id)
            if was is None or now is None or _values(was) != _values(now):
                yield RuleChange(rule_id=rule_id, name=name, before=was, after=now)

    def _rules_now(self, snapshot: Snapshot) -> RuleSet | None:
        """The rules that are there, as far as they can be read."""
        items = {name: data for name, data in snapshot.documents.items() if data}
        if not items:
            return None
        try:
            if self._store.separate:
                return parse_separately(items, {}).parsed.rules
            return parse_documents(items.items()).rules
        except RulesError:
            return None

    def _require_known(
        self, rule_ids: Sequence[str], known: Mapping[str, object], remedy: str = ""
    ) -> None:
        for rule_id in rule_ids:
            if rule_id not in known:
                near = difflib.get_close_matches(rule_id, known, n=1)
                nearest = f" (did you mean {near[0]!r}?)" if near else ""
                more = f"; {remedy}" if remedy else ""
                raise UsageError(f"{self._store} has no rule {rule_id!r}{nearest}{more}")


def _require_sound(
    read: IndependentDocuments, changed: Collection[str], before: Mapping[str, tuple[str, str]]
) -> None:
    """Raise `RulesError` for what a change makes wrong; what was wrong before is no reason to refuse another."""
    if not read.errors:
        return
    bad = parse_separately({name: as_bytes(text) for name, (_, text) in before.items()}, {}).errors
    made = [error for name, error in read.errors.items() if name in changed or name not in bad]
    if made:
        raise RulesError(made)


def _target(revision: int | None, history: Sequence[HistoryEntry], where: str) -> int:
    if not history:
        raise UsageError(f"{where} has no history to go back to")
    newest, oldest = history[0].revision, history[-1].revision
    target = newest - 1 if revision is None else revision
    if not oldest - 1 <= target < newest:
        raise UsageError(
            f"{where} can go back to revisions {oldest - 1} to {newest - 1}, not to {target}"
        )
    return target


def _undone(
    before: Mapping[str, tuple[str, str]], entries: Sequence[HistoryEntry]
) -> dict[str, str]:
    """The rules as they were before these changes, the newest of which comes first."""
    after = {rule_id: text for rule_id, (_, text) in before.items()}
    for entry in entries:
        for change in entry.changes:
            after.pop(change.rule_id, None)
            if change.before is not None:
                after[change.rule_id] = change.before
    return after


def _put(document: dict[str, Any], name: str, value: object) -> None:
    *outer, last = name.split(".")
    inside = document
    for step in outer:
        inside = inside.setdefault(step, {})
        if not isinstance(inside, dict):
            raise UsageError(f"the field {name!r} cannot be set: {step!r} has no fields")
    if value is None:
        inside.pop(last, None)
    else:
        inside[last] = value


def _values(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(value: Any) -> Any:
    """Mappings and tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
