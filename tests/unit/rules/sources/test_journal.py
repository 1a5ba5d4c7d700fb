"""How changes are written down, and read again."""

import json
import string

import pytest
from hypothesis import example, given, strategies as st

from headgate.rules.sources.base import KEPT_ENTRIES, Head, HistoryEntry, RuleChange, SourceError
from headgate.rules.sources.journal import (
    MAX_PARTS,
    JournalHead,
    as_bytes,
    as_text,
    decode_entry,
    decode_mark,
    encode_entry,
    encode_mark,
    entry_name,
    escape,
    forgettable,
    parts_of,
    unescape,
)


@given(st.text(min_size=1))
@example(".")
@example("..")
@example(".hidden")
def test_a_name_can_be_turned_back_into_its_id(rule_id: str) -> None:
    try:
        rule_id.encode()
    except UnicodeEncodeError:
        return  # No rule has such an id: it is no UTF-8.
    name = escape(rule_id)
    assert unescape(name) == rule_id
    assert not name.startswith(".")  # Nodes with such names are left alone.
    assert set(name) <= set(string.ascii_letters + string.digits + "-_.~%:@,+=()!*'")


@given(st.binary())
def test_any_bytes_survive_as_text(data: bytes) -> None:
    assert as_bytes(json.loads(json.dumps(as_text(data)))) == data


@given(st.integers(0, 40), st.integers(10, 500), st.booleans())
def test_an_entry_survives_splitting_and_reading(
    count: int,
    part: int,
    forced: bool,  # noqa: FBT001
) -> None:
    entry = HistoryEntry(
        revision=7,
        action="push",
        author="ann\x1b@höst",
        at=1.5,
        note="why\nnot",
        forced=forced,
        changes=tuple(
            RuleChange(rule_id=f"r{at}", name=f"r{at}", before=None, after='{"ü": 1}')
            for at in range(count)
        ),
    )
    data, parts = encode_entry(entry, "00ff", whole=300, part=part)
    assert list(parts) == parts_of(data)
    assert all(len(each) <= part for each in parts.values())
    assert decode_entry(data, parts.values(), "here") == entry


def test_a_mark_survives_writing_and_reading() -> None:
    head = Head(revision=2, author="ann", at=1.0, action="push", forced=1)
    for mark in (
        JournalHead(head=head, nonce="a"),
        JournalHead(
            head=head,
            nonce="b",
            previous=Head(revision=1, author="b", at=0.5, action="set"),
            writing=True,
        ),
    ):
        assert decode_mark(encode_mark(mark), "here") == mark


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "was not written by Headgate"),
        (b"[]", "was not written by Headgate"),
        (b'{"format": 1}', "was not written by Headgate"),
        (b'{"format": 2}', "has format 2, but this version of Headgate reads 1; upgrade it"),
    ],
)
def test_data_that_is_not_ours_is_reported(data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        decode_mark(data, "here")


def test_old_entries_are_forgotten_and_so_are_many_parts() -> None:
    names = [entry_name(at) for at in range(1, KEPT_ENTRIES + 11)]
    assert forgettable(names, KEPT_ENTRIES + 10) == names[:10]
    parts = [f"{entry_name(1)}.ab.{at:04d}" for at in range(3)]
    assert forgettable([*names, *parts], KEPT_ENTRIES + 10) == [*names[:10], *parts]
    few = [entry_name(at) for at in (1, 2, 3)]
    large = [f"{entry_name(2)}.ab.{at:04d}" for at in range(MAX_PARTS + 1)]
    assert forgettable([*few, *large], 3) == [*few[:2], *large]
    only = [entry_name(2), *large]
    assert forgettable(only, 2) == []
