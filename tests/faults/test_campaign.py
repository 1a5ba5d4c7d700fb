"""A short part of the fault campaign of `make faults`: a real store, three nodes, three client processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from headgate.lab.history import load_history
from headgate.lab.recorder import HistoryRecorder, OperationSlots, monotonic_us, write_unknown
from tests.faults.campaign.catalogue import FAULTS, fleet_for
from tests.faults.campaign.client import LIMITS
from tests.faults.campaign.fleet import Fleet, fleet
from tests.faults.campaign.pairs import OF_NODES, OF_THE_STORE
from tests.faults.campaign.report import write_report
from tests.faults.campaign.run import run_fault
from tests.faults.campaign.terms import USUAL, FaultTerms
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.heavy

SHORT = ("F1", "F3", "F22")
PATIENT = FaultTerms(
    late_per_mille=100,
    recovery_s=4.0,
    settled_per_mille=250,
    why="the machine is busy with other tests",
)


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Fleet]:
    with fleet("standalone") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("number", SHORT)
def test_a_fault_breaks_no_promise(number: str, three_nodes: Fleet, tmp_path: Path) -> None:
    """Slow: real processes, and faults that last a second or more.

    Other tests run beside it, and a process that waits for its turn looks like one more fault: what breaks must break
    twice. `make faults`, which has the machine to itself, asks for every run.
    """
    figures = run_fault(FAULTS[number], three_nodes, 1, tmp_path, terms=PATIENT)
    three_nodes.mend()
    three_nodes.wait_until_decided_by_store()
    if figures.missed:
        figures = run_fault(FAULTS[number], three_nodes, 1, tmp_path, terms=PATIENT)
        three_nodes.mend()
        three_nodes.wait_until_decided_by_store()
    assert not figures.missed, (figures.missed, figures.findings)
    assert figures.sources["fallback"] > 0
    assert figures.sources["engine"] > 0
    assert figures.answers > 0
    write_report([figures], tmp_path, commit="", seconds=1.0)
    assert f"{number}-1.svg" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_a_fault_on_etcd_breaks_no_promise(tmp_path: Path) -> None:
    """Slow, as above: an owner is killed, and not a unit may be over any limit."""
    fault = FAULTS["E1"]
    with contextlib.ExitStack() as stack:
        with installed():
            nodes = stack.enter_context(fleet_for(fault))
        figures = run_fault(fault, nodes, 1, tmp_path, terms=PATIENT)
    assert not figures.missed, (figures.missed, figures.findings)
    assert figures.over_limit == figures.bound == 0
    assert figures.sources["engine"] > 0


def test_every_fault_has_a_number_and_words_of_its_own() -> None:
    assert len({one.words for one in FAULTS.values()}) == len(FAULTS)
    assert all(name == one.number for name, one in FAULTS.items())


def test_a_fault_with_terms_of_its_own_says_why() -> None:
    assert [
        one.number for one in FAULTS.values() if (one.terms != USUAL) != bool(one.terms.why)
    ] == []
    assert {one.number for one in FAULTS.values() if one.terms.late_per_mille is None} == {
        "F24",
        "F24b",
        "F25",
        "E2",
    }
    assert {one.number for one in FAULTS.values() if one.terms.recovery_s > 1.0} == {"E10", "E11"}


def test_faults_that_come_together_need_the_same_fleet() -> None:
    needs = {FAULTS[number].needs for number in (*OF_THE_STORE, *OF_NODES, "F44b")}
    assert needs == {FAULTS["F1"].needs}


def test_what_a_client_was_doing_when_it_was_killed_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    slots = OperationSlots(tmp_path / "slots", 3)
    operation = {"f": "check", "key": "ann", "rule": "log", "cost": 2, "t0": monotonic_us()}
    slots.begin(0, operation)
    slots.begin(1, {**operation, "key": "bob"})
    slots.end(0)
    with HistoryRecorder(path, engine="redis", mode="exact", limits=LIMITS) as recorder:
        assert write_unknown(recorder, tmp_path / "slots", monotonic_us()) == 1
    (unknown,) = load_history(path).operations
    assert (unknown.key, unknown.type, unknown.cost) == ("bob", "info", 2)
