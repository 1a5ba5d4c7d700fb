"""What each algorithm guarantees is written once, in its class, and shown everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.algorithms import ALGORITHMS
from headgate.service.promises import promises
from headgate.service.settings import Settings

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_about_algorithms_shows_it(name: str) -> None:
    page = (ROOT / "docs/explanation/algorithms.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {ALGORITHMS[name].guarantee} |" in page


@pytest.mark.parametrize("engine", ["memory://", "redis://localhost"])
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"concurrency"}))
def test_the_service_shows_that_of_its_default(name: str, engine: str) -> None:
    found = dict(promises(Settings(default_algorithm=name, engine=engine)))
    assert found["by default"] == f"{name}: {ALGORITHMS[name].guarantee}"


def test_only_the_exact_one_says_never_more_than_the_limit() -> None:
    claims = [
        name for name, one in ALGORITHMS.items() if "never more than the limit" in one.guarantee
    ]
    assert claims == ["sliding_log"]
    folders = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    saying = {
        path.name
        for path in folders
        if "never more than the limit" in path.read_text(encoding="utf-8")
    }
    assert saying == {"sliding_log.py", "algorithms.md"}
