"""Reading JSON and YAML: what a scalar means, and on which line it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headgate.rules.format.document import MAX_BYTES, Document, path_text, read_document
from headgate.rules.format.json_reader import PART
from headgate.rules.format.problems import Problem, RulesError


def read(text: str | bytes, name: str = "x.yaml") -> Document:
    return read_document(text, name, pause=lambda: None)


def problems_of(text: str | bytes, name: str) -> list[Problem]:
    """What is said about a document; nothing when it was read."""
    try:
        return [*read(text, name).problems]
    except RulesError as error:
        return [*error.problems]


@pytest.mark.parametrize(
    "written, value",
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("null", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0x1F", "-0x1F"),
        ("+7", 7),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("1_000", "1_000"),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e-1", -0.05),
        (".", "."),
        ("-", None),  # An item of a list that is empty.
        ("2001-12-14", "2001-12-14"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ('"010"', "010"),
        ("'no'", "no"),
        ("|\n  a\n  b", "a\nb"),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(written: str, value: Any) -> None:
    if written == "-":
        assert read("-").value == [None]
    else:
        assert read(f"key: {written}").value == {"key": value}


def test_keys_are_texts_as_they_stand() -> None:
    assert read("no: 1\n42: 2\n0x1F: 3\n~: 4").value == {"no": 1, "42": 2, "0x1F": 3, "~": 4}


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_every_value_knows_its_line(name: str) -> None:
    text = '{"a": 1,\n "b": [\n  1,\n  {"c":\n 2}],\n "d": {}\n}'
    document = read(text, name)
    lines = {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
        ("d",): 6,
        ("d", "missing"): 6,
        ("b", 7): 2,
        ("b", "c"): 2,
        ("a", "c"): 1,
    }
    assert {path: document.line(path) for path in lines} == lines


def test_two_slashes_in_a_text_are_no_comment() -> None:
    text = '{"a": "http://x", // "b": 1,\n// "c": 2\n "d": "\\"//" }'
    document = read(text, "x.json")
    assert document.value == {"a": "http://x", "d": '"//'}
    assert document.line(["d"]) == 3


@pytest.mark.parametrize("before", [PART - 3, PART - 2, PART - 1, PART])
def test_a_comment_is_found_wherever_it_begins(before: int) -> None:
    assert read("[]".ljust(before) + "// a comment", "x.json").value == []


@pytest.mark.parametrize("text", ['{"a": 1}', " [1]", '// c\n{"a": 1}'])
def test_without_a_name_the_first_character_identifies_json(text: str) -> None:
    assert read(text, "node").value in ({"a": 1}, [1])


def test_without_a_name_everything_else_is_yaml() -> None:
    assert read("a: 1", "node").value == {"a": 1}


def test_json_in_a_yaml_file_is_yaml() -> None:
    assert read('{"a": [1, "no", null]}', "x.yaml").value == {"a": [1, "no", None]}


def test_more_bytes_than_allowed_are_refused_unread() -> None:
    with pytest.raises(RulesError, match=r"it has 8388609 bytes, but the limit is 8388608"):
        read(b" " * (MAX_BYTES + 1))


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_thirty_two_levels_are_not_too_deep(name: str) -> None:
    assert read("[" * 32 + "]" * 32, name).value
    with pytest.raises(RulesError, match="nested deeper than 32 levels"):
        read("[" * 33 + "]" * 33, name)


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_every_duplicate_key_is_reported_with_both_lines(name: str) -> None:
    text = '{"a": 1,\n"b": [{"c": 1,\n"c": {"d": 2}}],\n"a": [3]}'
    assert [str(problem) for problem in read(text, name).problems] == [
        f"{name}:3: b[0].c: the key 'c' is on lines 2 and 3; keep one of them",
        f"{name}:4: a: the key 'a' is on lines 1 and 4; keep one of them",
    ]


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_pauses_come_with_every_small_piece(name: str) -> None:
    pauses: list[int] = []
    text = json.dumps([{"a": i} for i in range(1_000)])
    read_document(text, name, pause=lambda: pauses.append(1))
    assert len(pauses) >= 1_000


@pytest.mark.parametrize(
    "path, text",
    [
        ((), ""),
        (("rules", 3, "match", "ip_subnet"), "rules[3].match.ip_subnet"),
        ((0, "x-y"), "[0]['x-y']"),
        (("a", "\x1b[2J"), "a['\\x1b[2J']"),
    ],
)
def test_paths_read_as_people_write_them(path: tuple[str | int, ...], text: str) -> None:
    assert path_text(path) == text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=PLAIN)
def test_json_survives_writing_and_reading(value: Any) -> None:
    text = json.dumps(value)
    assert read(text, "x.json").value == value


@given(value=PLAIN)
def test_json_is_the_same_when_it_is_read_as_yaml(value: Any) -> None:
    """With characters beyond ASCII escaped, as other programs write them; YAML has no escapes for halves of them."""
    text = json.dumps(value)
    if "\\ud" not in text:
        assert read(text, "x.yaml").value == value


@given(data=st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused_in_words(data: bytes) -> None:
    for name in ("x.yaml", "x.json", "x"):
        assert all(problem.message and problem.remedy for problem in problems_of(data, name))


@given(text=st.text("{}[]:,-?&*!|>'\"#%@` \n\tab0.~", max_size=60))
def test_punctuation_in_any_order_is_read_or_refused_in_words(text: str) -> None:
    for name in ("x.yaml", "x.json"):
        assert all(problem.message and problem.remedy for problem in problems_of(text, name))


def test_a_lone_surrogate_is_reported_with_its_line() -> None:
    for name in ("rules.yaml", "rules.json"):
        with pytest.raises(
            RulesError, match=rf"{name}:2: '\\ud800' is half a surrogate pair; write it"
        ):
            read_document("# \n\ud800", name, pause=lambda: None)
