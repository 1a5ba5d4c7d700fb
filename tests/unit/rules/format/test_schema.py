"""The JSON Schema: what an editor would say of every example, and of every bad file that a schema can tell."""

from __future__ import annotations

from pathlib import Path

import jsonschema_rs
import pytest

import headgate.rules.format
from headgate.rules.format.document import read_document
from headgate.rules.format.problems import RulesError
from headgate.rules.format.schema import DIALECT, json_schema, schema_text
from headgate.rules.format.starter import STARTER

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").iterdir())
BAD = sorted((HERE / "bad").iterdir())
VALIDATOR = jsonschema_rs.Draft202012Validator(json_schema())

BEYOND_A_SCHEMA = {
    # Which key or id is there twice, a schema does not see.
    *("key-twice.json", "key-twice.yaml", "id-twice.yaml", "field-under-two-names.yaml"),
    *("header-twice.yaml", "identifier-part-twice.yaml", "window-twice-in-limits.yaml"),
    # What a text means is not written in its shape.
    *("bad-defaults.yaml", "rate-that-is-none.yaml", "rate-in-months.yaml"),
    "rate-with-a-fraction.yaml",
    *("override-that-is-no-rate.yaml", "calendar-of-no-zone.yaml", "half-a-character.json"),
    *("host-beyond-ascii.yaml", "host-star.yaml", "host-with-a-port.yaml"),
    "descriptor-that-is-not-there.yaml",
    *(path.name for path in BAD if path.name.startswith(("override-of-", "exempt-of-"))),
    *(path.name for path in BAD if path.name.startswith(("pattern-", "subnet-", "identifier-"))),
    # What fits together.
    *("limit-without-a-window.yaml", "rate-and-limit.yaml", "calendar-and-window.yaml"),
    *("burst-of-a-window.yaml", "impossible-bucket.yaml", "impossible-log.yaml"),
    *(
        "cost-that-never-fits.yaml",
        "cost-above-its-max.yaml",
        "cost-between-no-bounds.yaml",
        "header-exact-and-prefix.yaml",
    ),
    *("exempt-everybody.yaml", "leased.yaml", "across-regions.yaml"),
} - {"identifier-missing.yaml", "identifier-empty.yaml", "pattern-too-long.yaml"}


def value_of(path: Path) -> object:
    """What is in a file; None for one that is no document at all, which no schema sees."""
    try:
        return read_document(path.read_bytes(), path.name, pause=lambda: None).value
    except RulesError:
        return None


def test_the_schema_is_one() -> None:
    jsonschema_rs.meta.validate(json_schema())
    assert json_schema()["$schema"] == DIALECT


def test_the_schema_that_comes_with_the_package_is_this_one() -> None:
    """`python docs/reference/write_rules.py` writes it."""
    package = Path(headgate.rules.format.__file__).parent
    assert (package / "schema.json").read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_good_rules_pass(path: Path) -> None:
    assert [str(error) for error in VALIDATOR.iter_errors(value_of(path))] == []


def test_the_starter_passes() -> None:
    value = read_document(STARTER, "x.yaml", pause=lambda: None).value
    assert [str(error) for error in VALIDATOR.iter_errors(value)] == []


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_file_fails_unless_its_fault_is_beyond_a_schema(path: Path) -> None:
    value = value_of(path)
    if value is not None:
        assert VALIDATOR.is_valid(value) == (path.name in BEYOND_A_SCHEMA)
