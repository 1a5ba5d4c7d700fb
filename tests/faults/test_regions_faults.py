"""A short part of the faults between regions, which `make faults` runs as a whole.

Three regions, each with a Redis or an etcd of its own, and links with round trips of 80 and 150 ms. What regions merge
must be charged in each of them exactly as often as it was admitted, and their counters must be the same in the end.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.faults.campaign.region_faults import (
    REGION_FAULTS,
    TERMS,
    regions_for,
    run_region_fault,
)
from tests.faults.campaign.region_heals import (
    BOUND_S,
    RegionHeal,
    figures_of,
    heal_regions,
    picture_of,
)
from tests.faults.campaign.region_picture import (
    LIMIT,
    MODES,
    PICTURE,
    picture_of as region_picture,
)
from tests.faults.campaign.report import write_report
from tests.faults.region_replay import _end_of_command
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from pathlib import Path

SHORT = ("F35c", "F35f", "F35i", "F36d", "F36e", "F36i", "F36j", "F36k")
SECONDS = 2
PATIENT = replace(TERMS, recovery_s=2.0, settled_per_mille=250)
"""The machine is busy with other tests."""


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("number", SHORT)
def test_a_fault_between_regions_breaks_no_promise(number: str, tmp_path: Path) -> None:
    """Slow: windows of 2 s on the real clock."""
    fault = REGION_FAULTS[number]
    with installed(), regions_for(fault.needs, tmp_path, limit=60, seconds=SECONDS) as fleet:
        figures = run_region_fault(fault, fleet, 1, tmp_path, terms=PATIENT)
    assert not figures.missed, (figures.missed, figures.findings)
    assert figures.sources["engine"] > 0


@pytest.mark.heavy
@pytest.mark.slow
def test_counts_meet_after_every_cut(tmp_path: Path) -> None:
    """Slow: real cuts. `make faults` makes 100 of them, and times each."""
    with installed():
        heals = heal_regions(tmp_path, 3, long=0)
    assert [one.difference for one in heals] == [0, 0, 0]
    assert all(one.met for one in heals)
    assert max(one.apart for one in heals) > 0


def test_a_cut_that_left_a_difference_or_took_too_long_is_told() -> None:
    met = RegionHeal("east", 0.5, admitted=12, apart=7, met_after_s=0.3, difference=0)
    assert figures_of([met]).verdict == "holds"
    figures = figures_of([met, replace(met, met_after_s=BOUND_S + 0.1)])
    assert (figures.verdict, figures.answers, figures.late) == ("LATE", 2, 1)
    assert figures.words.startswith("2 of 2 cuts")
    figures = figures_of([met, replace(met, difference=1)])
    assert (figures.verdict, figures.late) == ("BROKEN", 1)
    assert "differ by 1 of 12" in figures.findings[0]
    assert picture_of([met]).count("<rect") == 2


def test_the_report_gives_what_was_over_beside_its_bound(tmp_path: Path) -> None:
    met = RegionHeal("east", 0.5, admitted=12, apart=7, met_after_s=0.3, difference=0)
    cut = replace(figures_of([met]), fault="F35d", words="a cut", over_limit=12, bound=180)
    write_report([cut, replace(cut, fault="F1")], tmp_path, commit="", seconds=1.0)
    tables = (tmp_path / "report.md").read_text("utf-8").splitlines()
    assert "| F35d | a cut | 12 | 180 | 0 | 1 |" in tables
    assert "| F1 | a cut | 12 | 180 | 0 | 0 of 1 | 300 ms | – | 300 ms |" in tables
    assert "|---|---|---|---|---|---|" in tables


def test_the_picture_of_a_cut_is_drawn_from_what_was_measured() -> None:
    """Its description has every figure. Run `python -m tests.faults.campaign.region_picture` to measure again."""
    drawn = PICTURE.read_text("utf-8")
    measured = json.loads(drawn.partition("<desc>")[2].partition("</desc>")[0])
    assert region_picture(measured) == drawn
    assert list(measured) == list(MODES)
    for mode in ("split", "escrow"):
        assert max(sum(window.values()) for window in measured[mode]) <= LIMIT
    assert all(max(window.values()) <= LIMIT for window in measured["merge"])


def test_every_fault_has_a_number_and_words_of_its_own() -> None:
    assert len({one.words for one in REGION_FAULTS.values()}) == len(REGION_FAULTS)
    assert all(name == one.number for name, one in REGION_FAULTS.items())


def test_commands_on_a_link_are_split_correctly() -> None:
    command = b"*2\r\n$9\r\nHG.REGION\r\n$4\r\n\r\n$9\r\n"
    assert _end_of_command(command) == len(command)
    assert _end_of_command(command + b"*1") == len(command)
    assert all(_end_of_command(command[:size]) is None for size in range(len(command)))
