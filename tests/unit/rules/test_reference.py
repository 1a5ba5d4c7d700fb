"""The pages about rules: the one that is written by a program, and every example in them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from headgate.rules.format.cases import read_cases
from headgate.rules.format.parse import parse_rules
from headgate.rules.format.starter import STARTER

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to" / "write-rules.md"]
BLOCK = re.compile(r"^```(yaml|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Every YAML and JSON block that is a document of its own."""
    return [
        (f"{page.name}-{number}.{kind}", text)
        for page in PAGES
        for number, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
    ]


def test_the_page_is_as_its_program_writes_it() -> None:
    """`python docs/reference/write_rules.py` writes it anew."""
    program = runpy.run_path(str(DOCS / "reference" / "write_rules.py"))
    assert (DOCS / "reference" / "rules.md").read_text(encoding="utf-8") == program["page"]()


def test_the_starter_has_the_version_that_the_page_shows() -> None:
    rules = parse_rules(STARTER, "rules.yaml").rules
    shown = f"rules.yaml: {len(rules)} rules, version {rules.version}\n"
    assert shown in (DOCS / "how-to" / "write-rules.md").read_text(encoding="utf-8")


def test_the_defaults_of_the_starter_leave_every_kind_of_limit_open() -> None:
    more = "rules:\n  - {rule_id: quota, rate: 9/calendar month}\n  - {rule_id: b, rate: 9/s burst 3}\n"
    assert len(parse_rules(STARTER.replace("rules:\n", more, 1)).rules) == 6


@pytest.mark.parametrize("name, text", examples(), ids=[name for name, _ in examples()])
def test_every_example_can_be_used(name: str, text: str) -> None:
    parsed = parse_rules(text, name)
    assert len(parsed.rules)
    read_cases(parsed)
