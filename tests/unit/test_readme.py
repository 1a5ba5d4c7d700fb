"""README and the documentation's index: the way in to everything that is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"


def links(page: Path) -> set[str]:
    """The files that a page links to."""
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"\]\(((?!https?:)[^)#]+)", text)
    return {*inline, *re.findall(r"^\[[^]]+\]: (\S+)", text, re.MULTILINE)}


@pytest.mark.parametrize("folder", ["tutorials", "how-to", "reference", "explanation"])
def test_every_page_can_be_reached_from_the_index(folder: str) -> None:
    pages = {f"{folder}/{page.name}" for page in (ROOT / "docs" / folder).glob("*.md")}
    assert pages - links(INDEX) == set()


@pytest.mark.parametrize("page", [README, INDEX], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/index.md" in links(README)


def test_the_readme_has_four_rows_of_figures() -> None:
    _, _, section = README.read_text(encoding="utf-8").partition("## How fast")
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
