"""What turns data into code, or into objects of its own choosing, is nowhere in the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headgate

SOURCES = sorted(Path(headgate.__file__).parent.rglob("*.py"))
LOADERS = re.compile(
    r"^\s*(import|from) (pickle|marshal|shelve|dill)\b"
    r"|\b(pickle|marshal)\.loads?\("
    r"|\byaml\.(unsafe_|full_)?load(_all)?\("
    r"|(?<![.\w])(eval|exec)\(",
    re.MULTILINE,
)


@pytest.mark.parametrize("line", ["import pickle", "yaml.load(x)", " eval(x)", "pickle.loads(x)"])
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert LOADERS.search(line)


def test_nothing_is_ever_loaded_that_could_run() -> None:
    found = [path.name for path in SOURCES if LOADERS.search(path.read_text(encoding="utf-8"))]
    assert len(SOURCES) > 100
    assert found == []
