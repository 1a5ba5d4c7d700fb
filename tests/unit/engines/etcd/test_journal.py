"""The journal: what is written of states, what is kept of it, and what is let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import Concurrency, FixedWindow, SlidingLog, UsageError
from headgate.engines.etcd import entries as entries_module
from headgate.engines.etcd.entries import read_journal, unpacked
from headgate.engines.etcd.journal import CARRIED, Journal
from headgate.engines.etcd.records import Tenure
from headgate.engines.etcd.shard import Shard
from headgate.engines.etcd.state_cells import require_storable
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate.engines.etcd.entries import Entry

LIMIT = FixedWindow(1_000_000, 60_000_000)


class Written:
    """One shard, its journal, and the entries that etcd would hold."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shard = self.new_shard()
        self.journal = Journal()
        self.entries: dict[int, bytes] = {}

    def new_shard(self) -> Shard:
        shard = Shard(0, 1, self.clock, bytes(16), 100_000, 100_000_000)
        shard.serving = True
        return shard

    def hit(self, *keys: str) -> None:
        hit = self.shard.engine.bind(LIMIT)
        for key in keys:
            hit(key, 1)

    def commit(self, *, tidy: bool = False) -> list[Entry]:
        packed = self.journal.pack([self.shard], self.clock.now_us(), tidy=tidy)
        for entry in packed:
            self.entries[entry.sequence] = entry.value
            for number in range(entry.done, entry.base):
                del self.entries[number]
        self.shard.landed()
        return packed

    def loaded(self) -> Shard:
        """The next owner's shard."""
        bodies = [(number, unpacked(value)) for number, value in self.entries.items()]
        shard = self.new_shard()
        for rows in read_journal("me", bodies).rows.get((0, Tenure("me", 1)), ()):
            shard.restore(rows)
        return shard


def used(shard: Shard, key: str) -> int:
    return shard.engine.usage(key, LIMIT).used


def test_a_commit_names_what_changed_and_nothing_else() -> None:
    written = Written()
    written.hit("a", "b")
    written.commit()
    written.hit("b")
    (entry,) = written.commit()
    ((_, _, [table], _),) = unpacked(entry.value)["shards"]
    assert list(table[3]) == ["b"]
    assert written.commit() == []


def test_old_entries_are_repeated_and_deleted() -> None:
    """However many commits there are: what is kept is in proportion to what is alive."""
    written = Written()
    written.hit("quiet")
    for _ in range(100):
        written.hit("busy")
        written.commit(tidy=True)
    assert len(written.entries) <= 6
    loaded = written.loaded()
    assert (used(loaded, "quiet"), used(loaded, "busy")) == (1, 100)


def test_the_number_of_repeated_places_is_bounded() -> None:
    written = Written()
    written.hit(*(f"key{number}" for number in range(2 * CARRIED)))
    written.commit()
    for _ in range(8 * CARRIED):
        written.hit("busy")
        (entry,) = written.commit(tidy=True)
        ((_, _, [table], _),) = unpacked(entry.value)["shards"]
        assert len(table[3]) <= CARRIED + 1
    loaded = written.loaded()
    assert sum(used(loaded, f"key{number}") for number in range(2 * CARRIED)) == 2 * CARRIED


def test_what_was_loaded_is_written_bit_by_bit_unless_it_has_changed() -> None:
    earlier = Written()
    earlier.hit(*(f"key{number}" for number in range(2 * CARRIED)))
    earlier.commit()
    written = Written()
    written.shard = earlier.loaded()
    written.shard.begin_imports()
    written.hit("key0")
    rows = []
    while written.shard.imports:
        written.commit()
        rows.append(written.journal.rows)
    assert len(rows) == 2
    assert rows[0] in (
        CARRIED,
        CARRIED + 1,
    )  # The changed one comes first, or is the one that is left out.
    assert rows[1] == 2 * CARRIED
    loaded = written.loaded()
    assert used(loaded, "key0") == 2
    assert all(used(loaded, f"key{number}") == 1 for number in range(1, 2 * CARRIED))


def test_a_late_copy_of_a_deleted_entry_is_not_read() -> None:
    written = Written()
    written.hit("a")
    (first,) = written.commit()
    for _ in range(10):
        written.hit("a")
        written.commit(tidy=True)
    written.shard.engine.reset("a", LIMIT)
    for _ in range(10):
        written.hit("b")
        written.commit(tidy=True)
    assert first.sequence not in written.entries
    written.entries[first.sequence] = first.value
    assert used(written.loaded(), "a") == 0


def test_a_key_that_was_reset_does_not_come_back() -> None:
    written = Written()
    written.hit("a", "b")
    written.commit()
    written.shard.engine.reset("a", LIMIT)
    written.commit()
    loaded = written.loaded()
    assert (used(loaded, "a"), used(loaded, "b")) == (0, 1)


def test_a_reset_is_remembered_while_an_earlier_journal_may_contradict_it() -> None:
    written = Written()
    written.shard.importing = True
    written.hit("a")
    written.commit()
    written.shard.engine.reset("a", LIMIT)
    written.commit()
    for _ in range(50):
        written.hit("b")
        written.commit(tidy=True)
    said = [unpacked(value)["shards"][0][2][0][3] for value in written.entries.values()]
    assert any("a" in cells and cells["a"] is None for cells in said)


def test_what_was_handed_over_stays_until_the_next_owner_has_it() -> None:
    written = Written()
    written.hit("a")
    written.commit()
    gone, written.shard = written.shard, written.new_shard()
    gone.serving = False
    for _ in range(50):
        written.hit("b")
        written.commit(tidy=True)
    assert 1 in written.entries
    gone.needed = False
    written.hit("b")
    written.commit(tidy=True)
    assert 1 not in written.entries


def test_idle_keys_leave_memory_and_the_journal() -> None:
    written = Written()
    written.hit(*(f"key{number}" for number in range(1_000)))
    written.commit()
    for _ in range(4):
        written.clock.advance(61)
        written.shard.store.sweep(written.clock.now_us(), 64)
    assert written.shard.store.size == 0
    assert written.journal.has_waste(written.shard.store.size)
    written.commit(tidy=True)
    assert written.journal.rows == 0
    assert sum(map(len, written.entries.values())) < 100


def test_a_large_commit_is_split_and_only_its_last_part_deletes_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.engines.etcd.journal.MOST_BYTES", 2_000)
    assert entries_module.MOST_BYTES <= 1_500_000
    written = Written()
    written.hit("old")
    written.commit()
    written.hit(*(f"key{number}" for number in range(1_000)))
    packed = written.commit(tidy=True)
    assert len(packed) > 1
    assert all(len(entry.value) <= 2_000 for entry in packed)
    assert {entry.base for entry in packed[:-1]} == {1}
    loaded = written.loaded()
    assert all(used(loaded, f"key{number}") == 1 for number in range(1_000))


@pytest.mark.parametrize("limit", [SlidingLog(20_001, 60_000_000), Concurrency(10_001)])
def test_a_state_that_may_outgrow_a_write_of_etcd_is_refused(
    limit: SlidingLog | Concurrency,
) -> None:
    with pytest.raises(UsageError, match="on etcd"):
        require_storable(limit)


@pytest.mark.parametrize("other_first", [False, True])
def test_what_is_counted_again_after_everything_was_idle_is_written(*, other_first: bool) -> None:
    """Also by a function that was bound before, and knows the table that is gone and how changes were marked."""
    written = Written()
    take, marks = written.shard.bound(0, "", LIMIT, None)
    for _ in range(3):
        take("a", 1)
        assert "a" in marks.dirty
        written.commit()
        written.clock.advance(2 * LIMIT.window_us / 1_000_000)
        written.shard.store.sweep(written.clock.now_us(), 64)
        written.commit()
        written.shard.store.sweep(written.clock.now_us(), 64)
        assert not written.shard.store.tables
        if other_first:
            written.hit("b")
    take("a", 1)
    assert "a" in marks.dirty
    assert written.shard.is_dirty
    written.commit()
    assert used(written.loaded(), "a") == 1


def test_unneeded_marks_take_no_memory() -> None:
    written = Written()
    for seconds in range(1, 100):
        limit = FixedWindow(10, seconds * 1_000_000)
        written.shard.engine.bind(limit)("a", 1)
        written.commit()
    written.clock.advance(1_000)
    for _ in range(4):
        written.shard.store.sweep(written.clock.now_us(), 64)
        written.commit()
    assert not written.shard.store.marks
