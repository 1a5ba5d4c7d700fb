"""The pages about the service: the one that a program writes, and what they say about codes and fields."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import get_args

from headgate.decision import Source
from headgate.headers import NAMES
from headgate.service.http import bodies, problems

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_the_page_of_settings_is_as_its_program_writes_it() -> None:
    """`python docs/reference/write_settings.py` writes it anew."""
    program = runpy.run_path(str(REFERENCE / "write_settings.py"))
    assert (REFERENCE / "settings.md").read_text(encoding="utf-8") == program["page"]()


def test_every_field_of_the_check_api_is_in_the_reference() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    kinds = (
        bodies.CheckBody,
        bodies.DecideBody,
        bodies.ReserveBody,
        bodies.SettleBody,
        bodies.AcquireBody,
        bodies.Answer,
    )
    fields = {name for kind in kinds for name in kind.__struct_fields__}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def test_every_source_and_header_of_an_answer_is_in_the_reference() -> None:
    lines = (REFERENCE / "http.md").read_text(encoding="utf-8").splitlines()
    (sources,) = [line for line in lines if line.startswith("| `source` |")]
    assert [name for name in get_args(Source) if f"`{name}`" not in sources] == []
    rows = "".join(line.split("|")[1] for line in lines if line.startswith("| `"))
    assert [name for name in NAMES.values() if f"`{name}`" not in rows] == []


def test_every_problem_of_the_check_api_is_in_the_reference() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    kinds = [one for one in vars(problems).values() if isinstance(one, problems.ProblemType)]
    of_management = {"forbidden", "internal-error", "too-many-guesses"}
    missing = {kind.code for kind in kinds if f"`{kind.code}`" not in page} - of_management
    assert missing == set()
