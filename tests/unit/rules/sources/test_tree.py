"""Edits of a tree: who wins, what readers see meanwhile, and what a dead editor leaves behind."""

import json

import pytest

from headgate.rules.sources import tree as tree_module
from headgate.rules.sources.base import SourceError, VersionConflict
from headgate.rules.sources.tree_nodes import UnknownOutcome
from tests.unit.rules.sources.memory_tree import Crash, MemoryTree, Shared, an_edit, rule

SMALL = {f"r{at}": rule(f"r{at}") for at in range(3)}
LARGE = {f"r{at:02d}": rule(f"r{at:02d}", description="x" * 150) for at in range(40)}


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def store(shared: Shared) -> MemoryTree:
    return MemoryTree(shared)


def documents(store: MemoryTree) -> dict[str, object]:
    return {name: json.loads(data) for name, data in store.read().documents.items()}


def test_a_small_edit_is_one_transaction(store: MemoryTree) -> None:
    snapshot = store.read_for_edit()
    entry = store.commit(an_edit(store, snapshot, dict(SMALL)), snapshot)
    assert (entry.revision, store.transactions) == (1, 1)
    assert documents(store) == SMALL
    head = store.read().head
    assert head is not None
    assert (head.revision, head.author, head.forced) == (1, "ann", 0)


def test_the_second_of_two_editors_learns_who_was_first(shared: Shared) -> None:
    ann, bob = MemoryTree(shared), MemoryTree(shared)
    anns, bobs = ann.read_for_edit(), bob.read_for_edit()
    ann.commit(an_edit(ann, anns, dict(SMALL), author="ann@one"), anns)
    with pytest.raises(
        VersionConflict, match=r"ann@one was first: revision 1 \(push of r0, r1, r2\)"
    ) as told:
        bob.commit(an_edit(bob, bobs, {"r0": rule("r0", "99/minute")}, author="bob@two"), bobs)
    assert told.value.head is not None
    assert told.value.head.author == "ann@one"
    assert documents(bob) == SMALL


def test_a_rule_changed_with_another_tool_is_a_conflict_too(
    store: MemoryTree, shared: Shared
) -> None:
    first = store.read_for_edit()
    store.commit(an_edit(store, first, dict(SMALL)), first)
    snapshot = store.read_for_edit()
    shared.put("rule", "r1", b'{"rule_id": "r1"}')
    with pytest.raises(VersionConflict, match="changed meanwhile, not through Headgate"):
        store.commit(an_edit(store, snapshot, {"r1": rule("r1", "5/second")}), snapshot)
    assert documents(store)["r1"] == {"rule_id": "r1"}


def test_a_large_edit_is_seen_whole_or_not_at_all(shared: Shared) -> None:
    """Between any two of its transactions a reader sees the old set."""
    writer, reader = MemoryTree(shared), MemoryTree(shared)
    first = writer.read_for_edit()
    writer.commit(an_edit(writer, first, dict(SMALL)), first)
    seen: list[dict[str, object]] = []
    heads: list[object] = []

    def look(_number: int) -> None:
        seen.append(documents(reader))
        heads.append(reader.read().head)

    snapshot = writer.read_for_edit()
    writer.after = look
    writer.commit(an_edit(writer, snapshot, {**LARGE, "r0": None}), snapshot)
    assert len(seen) > 4
    assert all(each == SMALL for each in seen[:-1])
    assert all(head == snapshot.head for head in heads[:-1])
    assert seen[-1] == {"r1": SMALL["r1"], "r2": SMALL["r2"], **LARGE}


@pytest.mark.parametrize("applied", [False, True], ids=["not carried out", "carried out"])
@pytest.mark.parametrize("at", range(1, 8))
def test_an_editor_that_dies_anywhere_leaves_a_whole_set_and_the_next_one_finishes(
    shared: Shared, at: int, *, applied: bool
) -> None:
    old, new = dict(SMALL), dict(LARGE)
    editor = MemoryTree(shared)
    first = editor.read_for_edit()
    editor.commit(an_edit(editor, first, old), first)

    def die(number: int) -> None:
        if number == at + 1:
            raise Crash

    if applied:
        editor.after = die
    else:
        editor.before = die
    snapshot = editor.read_for_edit()
    with pytest.raises(Crash):
        editor.commit(an_edit(editor, snapshot, {**new, **dict.fromkeys(old)}), snapshot)
    reader = MemoryTree(shared)
    seen = documents(reader)
    assert seen in (old, new)
    finisher = MemoryTree(shared)
    after = finisher.read_for_edit()
    announced = at > 1 or applied
    assert documents(reader) == (new if announced else old)
    last = finisher.commit(an_edit(finisher, after, {"more": rule("more")}), after)
    assert last.revision == (3 if announced else 2)


@pytest.mark.parametrize("applied", [False, True], ids=["not carried out", "carried out"])
@pytest.mark.parametrize("wanted", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_lost_answer_neither_loses_nor_repeats_a_change(
    store: MemoryTree,
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, dict[str, object]],
    at: int,
    *,
    applied: bool,
) -> None:
    monkeypatch.setattr(tree_module, "PAUSE_SECONDS", 0.0)

    def lose(number: int) -> None:
        if number == at:
            raise UnknownOutcome("no answer")

    if applied:
        store.after = lose
    else:
        store.before = lose
    snapshot = store.read_for_edit()
    entry = store.commit(an_edit(store, snapshot, wanted), snapshot)
    assert entry.revision == 1
    assert documents(store) == wanted
    assert [one.revision for one in store.history()] == [1]


def test_an_answer_that_never_comes_is_reported_as_unknown(
    store: MemoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "PATIENCE_SECONDS", 0.0)

    def lose(_number: int) -> None:
        raise UnknownOutcome("no answer")

    store.before = lose
    snapshot = store.read_for_edit()
    with pytest.raises(SourceError, match="the change may have been made"):
        store.commit(an_edit(store, snapshot, dict(SMALL)), snapshot)


def test_an_editor_that_cannot_complete_its_change_learns_that_others_will(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "PATIENCE_SECONDS", 0.0)
    store = MemoryTree(shared)
    snapshot = store.read_for_edit()

    def away(number: int) -> None:
        if number == 3:
            raise SourceError("memory does not answer")

    store.before = away
    with pytest.raises(SourceError, match="announced and not yet complete") as caught:
        store.commit(an_edit(store, snapshot, dict(LARGE)), snapshot)
    assert caught.value.transient
    assert documents(store) == {}
    MemoryTree(shared).read_for_edit()
    assert documents(store) == LARGE


def test_a_lost_answer_followed_by_another_change_is_still_recognised(shared: Shared) -> None:
    ann, bob = MemoryTree(shared), MemoryTree(shared)

    def bob_is_next(number: int) -> None:
        if number == 1:
            theirs = bob.read_for_edit()
            bob.commit(an_edit(bob, theirs, {"b": rule("b")}, author="bob"), theirs)
            raise UnknownOutcome("no answer")

    ann.after = bob_is_next
    snapshot = ann.read_for_edit()
    assert ann.commit(an_edit(ann, snapshot, {"a": rule("a")}), snapshot).revision == 1
    assert [one.author for one in ann.history()] == ["bob", "ann"]


def test_a_rule_that_is_too_large_is_refused_before_anything_is_written(
    store: MemoryTree, shared: Shared
) -> None:
    snapshot = store.read_for_edit()
    huge = {"a": rule("a"), "huge": rule("huge", description="x" * 2_000)}
    with pytest.raises(SourceError, match=r"'huge' has 2,\d+ bytes and memory takes 2,000 at most"):
        store.commit(an_edit(store, snapshot, dict(huge)), snapshot)
    assert shared.version == 0


def test_history_has_every_rule_before_and_after_and_forgets_the_oldest(
    store: MemoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.rules.sources.journal.KEPT_ENTRIES", 5)
    for at in range(8):
        snapshot = store.read_for_edit()
        store.commit(an_edit(store, snapshot, {"a": rule("a", f"{at + 1}/minute")}), snapshot)
    history = store.history()
    assert [entry.revision for entry in history] == [8, 7, 6, 5, 4]
    (change,) = history[0].changes
    assert change.before is not None
    assert change.after is not None
    assert json.loads(change.before)["rate"] == "7/minute"
    assert json.loads(change.after)["rate"] == "8/minute"


def test_a_forced_change_is_remembered_by_those_that_follow(store: MemoryTree) -> None:
    forced = []
    for at, force in enumerate([False, True, False]):
        snapshot = store.read_for_edit()
        edit = an_edit(store, snapshot, {"a": rule("a", f"{at + 1}/minute")}, forced=force)
        store.commit(edit, snapshot)
        head = store.read().head
        assert head is not None
        forced.append(head.forced)
    assert forced == [0, 2, 2]


def test_a_head_that_is_not_ours_is_an_error_that_names_the_remedy(
    store: MemoryTree, shared: Shared
) -> None:
    shared.put("head", "", b"something else")
    with pytest.raises(SourceError, match="was not written by Headgate, or is damaged; remove it"):
        store.read()


def test_two_nodes_with_one_id_are_distinguished(store: MemoryTree, shared: Shared) -> None:
    shared.put("rule", "one", json.dumps(rule("same")).encode())
    shared.put("rule", "two", json.dumps(rule("same")).encode())
    assert {name for name, _ in store.rules_in(store.read()).values()} == {"one", "two"}
