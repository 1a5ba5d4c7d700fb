"""Plans: checked as a whole before anything is written."""

import json
from typing import TYPE_CHECKING

import pytest

from headgate.errors import UsageError
from headgate.rules.format.problems import RulesError
from headgate.rules.live.change_check import ChangeRefused
from headgate.rules.live.editing import Editor, EditPlan
from headgate.rules.sources.base import VersionConflict
from tests.unit.rules.sources.memory_tree import MemoryTree, Shared, rule

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def store() -> MemoryTree:
    store = MemoryTree(Shared())
    push(store, rule("a"), rule("b"), rule("c"))
    return store


def push(store: MemoryTree, *rules: dict[str, object], force: bool = False) -> None:
    data = json.dumps(list(rules)).encode()
    Editor(store).push(data, "rules.json").make(author="ann", at=0.0, force=force)


def rates(store: MemoryTree) -> dict[str, str]:
    return {name: json.loads(data)["rate"] for name, data in store.read().documents.items()}


def test_a_push_writes_only_what_is_different(store: MemoryTree) -> None:
    data = json.dumps([rule("a"), rule("b", "11/minute"), rule("d")]).encode()
    plan = Editor(store).push(data, "rules.json")
    assert [change.rule_id for change in plan.changes] == ["b", "c", "d"]
    assert str(plan.difference) == "1 added, 1 removed, 1 changed"
    plan.make(author="ann", at=0.0)
    assert rates(store) == {"a": "10/minute", "b": "11/minute", "d": "10/minute"}


def test_the_same_rules_again_change_nothing(store: MemoryTree) -> None:
    data = json.dumps([rule("c"), rule("b"), rule("a")], indent=3).encode()
    assert Editor(store).push(data, "rules.json").changes_nothing


def test_an_invalid_rule_set_changes_nothing(store: MemoryTree) -> None:
    version = store.shared.version
    bad: list[Callable[[], EditPlan]] = [
        lambda: Editor(store).push(b'[{"rule_id": "a"}]', "rules.json"),
        lambda: Editor(store).set([{"rule_id": "a", "rate": "1/s"}]),
        lambda: Editor(store).set_fields("a", {"rate": "often"}),
        lambda: Editor(store).set_fields("a", {"identifier": None}),
    ]
    for plan in bad:
        with pytest.raises(RulesError):
            plan()
    assert store.shared.version == version


def test_setting_fields_changes_and_removes_them(store: MemoryTree) -> None:
    fields = {"rate": "5/second", "match.methods": ["POST"], "description": "x"}
    Editor(store).set_fields("a", fields).make(author="ann", at=0.0)
    Editor(store).set_fields("a", {"description": None}).make(author="ann", at=0.0)
    assert json.loads(store.read().documents["a"]) == {
        **rule("a", "5/second"),
        "match": {"methods": ["POST"]},
    }
    with pytest.raises(UsageError, match="'rate' has no fields"):
        Editor(store).set_fields("a", {"rate.unit": "x"})


def test_an_unknown_rule_id_is_an_error_that_suggests_the_nearest(store: MemoryTree) -> None:
    push(store, rule("login"), rule("a"), rule("b"))
    said = r"memory has no rule 'logn' \(did you mean 'login'\?\)"
    with pytest.raises(UsageError, match=said):
        Editor(store).delete(["logn"])
    with pytest.raises(UsageError, match=said):
        Editor(store).set_fields("logn", {})


def test_a_change_the_check_objects_to_must_be_forced(store: MemoryTree) -> None:
    plan = Editor(store).delete(["a", "b"])
    assert plan.objections == ("2 of 3 rules would be gone (a, b)",)
    with pytest.raises(ChangeRefused):
        plan.make(author="ann", at=0.0)
    entry = plan.make(author="ann", at=0.0, force=True)
    assert entry.forced
    assert store.history()[0].forced
    everything = Editor(store).delete(["c"])
    with pytest.raises(
        ChangeRefused, match=r"no rule is left, so nothing .* with --allow-empty; nothing"
    ):
        everything.make(author="ann", at=0.0, force=True)
    everything.make(author="ann", at=0.0, allow_empty=True)
    assert rates(store) == {}
    head = store.read().head
    assert head is not None
    assert head.is_empty


def test_an_invalid_rule_does_not_block_changes_to_others(store: MemoryTree) -> None:
    store.shared.put("rule", "b", b"\xff{")
    plan = Editor(store).set_fields("a", {"rate": "11/minute"})
    assert [warning.file for warning in plan.warnings if warning.file == "b"] == ["b"]
    plan.make(author="ann", at=0.0)
    assert json.loads(store.read().documents["a"])["rate"] == "11/minute"
    assert store.read().documents["b"] == b"\xff{"
    with pytest.raises(RulesError, match="often"):
        Editor(store).set_fields("a", {"rate": "often"})
    with pytest.raises(ChangeRefused, match="2 of 2 rules would be gone"):
        push(store, rule("x"))
    Editor(store).delete(["b"]).make(author="ann", at=0.0)
    assert list(store.read().documents) == ["a", "c"]


def test_a_change_that_exceeds_the_maximum_of_rules_is_refused(store: MemoryTree) -> None:
    with pytest.raises(RulesError, match="one too many"):
        Editor(store).set([rule(f"x{at:03d}") for at in range(126)])


def test_a_push_can_require_the_revision_its_author_saw(store: MemoryTree) -> None:
    data = json.dumps([rule("a"), rule("b")]).encode()
    with pytest.raises(VersionConflict, match="memory is at revision 1, by ann, not at 0"):
        Editor(store, expected_revision=0).push(data, "rules.json")
    Editor(store, expected_revision=1).push(data, "rules.json").make(author="ann", at=0.0)


def test_every_change_can_require_a_revision(store: MemoryTree) -> None:
    late = Editor(store, expected_revision=0)
    changes: list[Callable[[], EditPlan]] = [
        lambda: late.set([rule("d")]),
        lambda: late.set_fields("a", {"rate": "11/minute"}),
        lambda: late.delete(["a"]),
        late.rollback,
    ]
    for change in changes:
        with pytest.raises(VersionConflict, match="at revision 1, by ann, not at 0"):
            change()
    Editor(store, expected_revision=1).delete(["a"]).make(author="ann", at=0.0)


def test_a_plan_names_the_rules_that_it_would_change(store: MemoryTree) -> None:
    plan = Editor(store).set([rule("d")])
    plan.make(author="ann", at=0.0)
    assert Editor(store).delete(["d"]).base == plan.rules.version != plan.base
    assert Editor(MemoryTree(Shared())).set([rule("a")]).base == ""


def test_a_rollback_undoes_every_later_change(store: MemoryTree) -> None:
    push(store, rule("a", "20/minute"), rule("b"), rule("d"))
    push(store, rule("a", "30/minute"), rule("b"), rule("d"), rule("e"))
    Editor(store).rollback().make(author="bob", at=0.0)
    assert rates(store) == {"a": "20/minute", "b": "10/minute", "d": "10/minute"}
    Editor(store).rollback(1).make(author="bob", at=0.0)
    assert rates(store) == {"a": "10/minute", "b": "10/minute", "c": "10/minute"}
    assert [entry.action for entry in store.history()] == [
        "rollback",
        "rollback",
        "push",
        "push",
        "push",
    ]


def test_a_rollback_passes_the_change_check(store: MemoryTree) -> None:
    push(store, *(rule(f"r{at}") for at in range(9)), force=True)
    entry = Editor(store).rollback().make(author="bob", at=0.0)
    assert entry.forced
    assert set(rates(store)) == {"a", "b", "c"}


def test_a_rollback_needs_a_revision_in_the_history(store: MemoryTree) -> None:
    for revision in (1, 7, -1):
        with pytest.raises(UsageError, match=f"can go back to revisions 0 to 0, not to {revision}"):
            Editor(store).rollback(revision)
    with pytest.raises(UsageError, match="has no history"):
        Editor(MemoryTree(Shared())).rollback()


def test_a_dry_run_writes_nothing_not_even_a_repair(store: MemoryTree) -> None:
    version = store.shared.version
    plan = Editor(store, look_only=True).delete(["a"])
    assert str(plan.difference) == "1 removed"
    assert store.shared.version == version


def test_a_push_replaces_unreadable_rules(store: MemoryTree) -> None:
    store.shared.put("rule", "broken", b"\xff{")
    store.shared.put("rule", "two", json.dumps([rule("x"), rule("y")]).encode())
    push(store, rule("a"), rule("b"), rule("c"))
    assert set(rates(store)) == {"a", "b", "c"}
