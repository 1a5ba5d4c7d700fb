"""README: the way in to everything that is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["tutorials", "how-to", "reference", "explanation"])
def test_every_page_can_be_reached_from_it(folder: str) -> None:
    pages = {f"docs/{folder}/{page.name}" for page in (ROOT / "docs" / folder).glob("*.md")}
    assert pages - set(re.findall(r"\]\((docs/[^)#]+)", README)) == set()


def test_every_link_in_it_leads_somewhere() -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
