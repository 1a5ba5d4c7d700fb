"""A short part of the faults between regions, which `make faults` runs as a whole.

Three regions, each with a Redis or an etcd of its own, and links with round trips of 80 and 150 ms. What regions merge must be
charged in each of them exactly as often as it was admitted, and their counters must be the same in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.campaign.region_faults import REGION_FAULTS, regions_for, run_region_fault
from tests.faults.region_replay import _end_of_command
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from pathlib import Path

SHORT = ("F35c", "F35f", "F36d", "F36e", "F36i", "F36j", "F36k")
SECONDS = 2


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("number", SHORT)
def test_a_fault_between_regions_breaks_no_promise(number: str, tmp_path: Path) -> None:
    """Slow: windows of 2 s on the real clock."""
    fault = REGION_FAULTS[number]
    with installed(), regions_for(fault.needs, tmp_path, limit=60, seconds=SECONDS) as fleet:
        figures = run_region_fault(fault, fleet, 1, tmp_path)
    assert figures.holds, figures.findings
    assert figures.sources["engine"] > 0


def test_every_fault_has_a_number_and_words_of_its_own() -> None:
    assert len({one.words for one in REGION_FAULTS.values()}) == len(REGION_FAULTS)
    assert all(name == one.number for name, one in REGION_FAULTS.items())


def test_commands_on_a_link_are_told_apart() -> None:
    command = b"*2\r\n$9\r\nHG.REGION\r\n$4\r\n\r\n$9\r\n"
    assert _end_of_command(command) == len(command)
    assert _end_of_command(command + b"*1") == len(command)
    assert all(_end_of_command(command[:size]) is None for size in range(len(command)))
