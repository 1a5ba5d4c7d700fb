"""Several editors of one tree, dying and losing answers anywhere: the rules are always what the history says.

Every change that was made is in the history once, no change that was refused is, and at any moment a reader sees
exactly what all complete changes, one after the other, lead to.
"""

import json
from dataclasses import dataclass
from unittest import mock

from hypothesis import given, strategies as st

from headgate.rules.sources import tree
from headgate.rules.sources.base import Snapshot, SourceError, VersionConflict
from headgate.rules.sources.tree_nodes import UnknownOutcome
from tests.unit.rules.sources.memory_tree import Crash, MemoryTree, Shared, an_edit, rule

EDITORS = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one transaction of an edit: the editor dies, or hears no answer."""

    at: int
    dies: bool
    carried_out: bool


@dataclass(frozen=True, slots=True)
class Step:
    editor: int
    rules: dict[str, int | None]
    """By id: the new limit, or `None` to take the rule out."""
    looks_first: bool
    """Whether the editor reads before it writes, or goes by what it saw last."""
    fault: Fault | None


faults = st.builds(Fault, at=st.integers(1, 6), dies=st.booleans(), carried_out=st.booleans())
changes = st.dictionaries(
    st.sampled_from([f"r{at}" for at in range(30)]),
    st.none() | st.integers(1, 9),
    min_size=1,
    max_size=30,
)
steps = st.builds(
    Step,
    editor=st.integers(0, EDITORS - 1),
    rules=changes,
    looks_first=st.booleans(),
    fault=st.none() | faults,
)


@given(st.lists(steps, max_size=12))
def test_the_rules_are_what_the_history_says(program: list[Step]) -> None:
    shared = Shared()
    reader = MemoryTree(shared)
    seen: dict[int, Snapshot] = {}
    made: list[str] = []
    refused: list[str] = []
    with mock.patch.object(tree, "PAUSE_SECONDS", 0.0):
        for number, step in enumerate(program):
            author = f"edit-{number}"
            editor = MemoryTree(shared)
            if step.looks_first or step.editor not in seen:
                seen[step.editor] = editor.read_for_edit()
                _require_told(reader)
            _arm(editor, step.fault)
            try:
                _commit(editor, seen[step.editor], step.rules, author)
                made.append(author)
            except VersionConflict:
                refused.append(author)
            except Crash:
                pass  # It was made, or will be, or not: the history knows.
            _require_told(reader)
        MemoryTree(shared).read_for_edit()
        _require_told(reader)
    authors = [entry.author for entry in reversed(reader.history())]
    assert len(set(authors)) == len(authors)
    assert [author for author in authors if author in made] == made
    assert not set(authors) & set(refused)


def _commit(
    editor: MemoryTree, snapshot: Snapshot, limits: dict[str, int | None], author: str
) -> None:
    wanted = {
        rule_id: None if limit is None else rule(rule_id, f"{limit}/minute", description="x" * 300)
        for rule_id, limit in limits.items()
    }
    have = editor.rules_in(snapshot)
    real = {name: each for name, each in wanted.items() if each is not None or name in have}
    editor.commit(an_edit(editor, snapshot, real, author=author), snapshot)


def _arm(editor: MemoryTree, fault: Fault | None) -> None:
    if fault is None:
        return

    def strike(number: int) -> None:
        if number == fault.at:
            raise Crash if fault.dies else UnknownOutcome("no answer")

    if fault.carried_out:
        editor.after = strike
    else:
        editor.before = strike


def _require_told(reader: MemoryTree) -> None:
    """The rules are what all complete changes lead to."""
    expected: dict[str, object] = {}
    for entry in reversed(reader.history()):
        for change in entry.changes:
            expected.pop(change.name, None)
            if change.after is not None:
                expected[change.name] = json.loads(change.after)
    found = {name: json.loads(data) for name, data in reader.read().documents.items()}
    assert found == expected


def test_the_oracle_would_notice_a_half_made_change() -> None:
    """Rules that were changed without the history are seen by it."""
    shared = Shared()
    store = MemoryTree(shared)
    snapshot = store.read_for_edit()
    store.commit(an_edit(store, snapshot, {"a": rule("a")}), snapshot)
    _require_told(store)
    shared.put("rule", "b", b"{}")
    try:
        _require_told(store)
    except AssertionError:
        return
    raise SourceError("the oracle sees nothing")
