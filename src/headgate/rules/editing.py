"""Changing the rules of a store: planned and checked as a whole first, then made, or not made at all.

A plan is made against the rules as they are now. It holds the whole set as it would be, which has been read and found to
work, and what the guard has to say about it. Making it fails if anybody has changed the rules since.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .guard import Difference, GuardRefused, difference, objections
from .parse import parse_documents, parse_rules
from .problem import Problem, RulesError
from .sources.base import Change, Edit, Entry, Progress, Snapshot, Store, VersionConflict

if TYPE_CHECKING:
    from .model import RuleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change that would work."""

    store: Store
    snapshot: Snapshot
    action: str
    changes: tuple[Change, ...]
    rules: RuleSet
    """All rules, as they would be."""
    base: str = ""
    """The version of the rules that are there now; empty if there are none that can be read."""
    objections: tuple[str, ...] = ()
    """What the guard has against it."""
    warnings: tuple[Problem, ...] = ()
    text: bytes | None = field(default=None, repr=False)
    forced: bool = False

    @property
    def difference(self) -> Difference:
        """Which rules come, go and change."""
        return difference(
            {one.rule_id: one.before for one in self.changes if one.before is not None},
            {one.rule_id: one.after for one in self.changes if one.after is not None},
        )

    @property
    def changes_nothing(self) -> bool:
        """Whether everything is already as it should be."""
        return not self.changes and self.text in (None, *self.snapshot.documents.values())

    def require_wanted(self, *, force: bool) -> None:
        """Raise `GuardRefused` if the guard objects, and nobody insists."""
        if self.objections and not force and not self.forced:
            raise GuardRefused(self.objections, "run it again with --force; nothing was written")

    def make(
        self,
        *,
        author: str,
        at: float,
        note: str = "",
        force: bool = False,
        progress: Progress | None = None,
    ) -> Entry:
        """Make the change; raises `GuardRefused` if it needs `force`, `VersionConflict` if somebody was faster."""
        self.require_wanted(force=force)
        edit = Edit(
            action=self.action,
            author=author,
            at=at,
            changes=self.changes,
            note=note,
            forced=force or self.forced,
            text=self.text,
        )
        return self.store.commit(edit, self.snapshot, progress=progress)


class Editor:
    """Plans changes of one store. With `look_only` nothing is ever written, not even to mend what was left half done.

    With `expected_revision` there is a plan only while the store is at that revision; else `VersionConflict` is raised.
    """

    def __init__(
        self, store: Store, *, look_only: bool = False, expected_revision: int | None = None
    ) -> None:
        self._store = store
        self._look_only = look_only
        self._expected_revision = expected_revision

    def push(self, data: bytes, name: str) -> Plan:
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

    def set(self, documents: Sequence[Mapping[str, Any]]) -> Plan:
        """Add these rules, or put them in the place of those with the same ids."""
        return self._set(self._read(), documents)

    def _set(self, snapshot: Snapshot, documents: Sequence[Mapping[str, Any]]) -> Plan:
        before = self._store.rules_in(snapshot)
        after = {rule_id: text for rule_id, (_, text) in before.items()}
        for document in documents:
            after[str(document["rule_id"])] = json.dumps(_plain(document))
        return self._plan("set", snapshot, before, after)

    def set_fields(self, rule_id: str, fields: Mapping[str, Any]) -> Plan:
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

    def delete(self, rule_ids: Sequence[str]) -> Plan:
        """Take these rules out."""
        snapshot = self._read()
        before = self._store.rules_in(snapshot)
        self._require_known(rule_ids, before)
        after = {
            rule_id: text for rule_id, (_, text) in before.items() if rule_id not in set(rule_ids)
        }
        return self._plan("delete", snapshot, before, after)

    def rollback(self, revision: int | None = None) -> Plan:
        """Go back to the rules as `revision` left them; without one, to those before the newest change.

        The guard lets it pass, unless no rule would be left: these have held before, and whoever goes back is in a hurry.
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
    ) -> Plan:
        found: Sequence[str] = ()
        if rules is None and after:
            parsed = parse_documents([(name, text.encode()) for name, text in after.items()])
            rules, warnings = parsed.rules, parsed.warnings
        if rules is None:
            rules = parse_documents([]).rules
        now = self._rules_now(snapshot)
        if not forced or not after:
            found = objections(now, rules)
        return Plan(
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
    ) -> Iterable[Change]:
        for rule_id in sorted(before.keys() | after.keys()):
            name, was = before.get(rule_id, (self._store.name_for(rule_id), None))
            now = after.get(rule_id)
            if was is None or now is None or _values(was) != _values(now):
                yield Change(rule_id=rule_id, name=name, before=was, after=now)

    def _rules_now(self, snapshot: Snapshot) -> RuleSet | None:
        items = [(name, data) for name, data in snapshot.documents.items() if data]
        if not items:
            return None
        try:
            return parse_documents(items).rules
        except RulesError:
            return None

    def _require_known(
        self, rule_ids: Sequence[str], known: Mapping[str, object], remedy: str = ""
    ) -> None:
        for rule_id in rule_ids:
            if rule_id not in known:
                near = difflib.get_close_matches(rule_id, known, n=1)
                nearest = f", but {near[0]!r} is one" if near else ""
                more = f"; {remedy}" if remedy else ""
                raise UsageError(f"{self._store} has no rule called {rule_id!r}{nearest}{more}")


def _target(revision: int | None, history: Sequence[Entry], where: str) -> int:
    if not history:
        raise UsageError(f"{where} has no history, so there is nothing to go back to")
    newest, oldest = history[0].revision, history[-1].revision
    target = newest - 1 if revision is None else revision
    if not oldest - 1 <= target < newest:
        raise UsageError(
            f"{where} can go back to revisions {oldest - 1} to {newest - 1}, not to {target}"
        )
    return target


def _undone(before: Mapping[str, tuple[str, str]], entries: Sequence[Entry]) -> dict[str, str]:
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
