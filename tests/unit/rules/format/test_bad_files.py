"""Every file in `bad/` is named after its fault, and `bad.txt` has what is said about it, word by word.

After a change that is meant to show, write the texts anew and read the difference:

    REWRITE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/rules/format/test_bad_files.py
    git diff tests/unit/rules/format/bad.txt
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.rules.format.parse import parse_rules
from headgate.rules.format.problems import RulesError

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").iterdir())
GOLDEN = HERE / "bad.txt"


def complaints(path: Path) -> list[str]:
    with pytest.raises(RulesError) as refused:
        parse_rules(path.read_bytes(), path.name)
    return [str(problem) for problem in refused.value.problems]


@pytest.fixture(scope="module", autouse=True)
def golden() -> list[str]:
    if os.environ.get("REWRITE_GOLDEN"):
        said = [line for path in BAD for line in complaints(path)]
        GOLDEN.write_text("\n".join(said) + "\n", encoding="utf-8")
    return GOLDEN.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_file_is_refused_with_its_faults_and_their_remedies(
    path: Path, golden: list[str]
) -> None:
    expected = [line for line in golden if line.startswith(f"{path.name}:")]
    assert expected
    assert complaints(path) == expected


def test_the_golden_texts_are_about_files_that_exist(golden: list[str]) -> None:
    assert {line.partition(":")[0] for line in golden} == {path.name for path in BAD}
