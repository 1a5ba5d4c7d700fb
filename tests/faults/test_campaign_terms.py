"""The campaign fails for what it is there to find: histories and figures that are made up, and miss one term each."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow
from headgate.lab.history import Fault, History, HistoryHeader, Operation
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge
from tests.faults.campaign import __main__ as campaign
from tests.faults.campaign.catalogue import FAULTS
from tests.faults.campaign.report import summary_of, write_report
from tests.faults.campaign.run import ended, recovery_of
from tests.faults.campaign.terms import (
    STRAY_PER_MILLE,
    USUAL,
    FaultFigures,
    FaultTerms,
    exit_code,
    late_faults,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECOND = 1_000_000
BROKEN_AT, HEALED_AT, ENDS_AT = 1 * SECOND, 3 * SECOND, 13 * SECOND
EVERY_US = 10_000
GOOD = FaultFigures(
    "F1", "a store killed", 1, USUAL, holds=True, violations={}, findings=[], operations=2_000,
    sources={"engine": 1_900, "fallback": 100}, failed=0, unknown=0, strays=0, over_limit=0, bound=10, over_bound=0,
    answers=2_000, late=2, worst_ms=31.0, left_after_ms=20.0, back_after_ms=400.0, settled=400, unanswered=0,
)  # fmt: skip


def history(source_at: Callable[[int], str], type_at: Callable[[int], str] | None = None) -> Scene:
    """Requests at a steady pace, before, during and after an outage of the store of two seconds."""
    parameters = {
        "nodes": 3, "on_error": "fallback", "recovery_us": SECOND, "drain_us": 2 * SECOND, "lag_us": SECOND,
        "stray_per_mille": STRAY_PER_MILLE, "settled_per_mille": USUAL.settled_per_mille,
    }  # fmt: skip
    header = HistoryHeader("redis", "exact", {"api": FixedWindow(3_000, SECOND)}, parameters)
    operations = []
    for number, at in enumerate(range(0, ENDS_AT, EVERY_US)):
        kind = type_at(at) if type_at is not None else "allow"
        operations.append(
            Operation(
                f="check", t0=at, t1=at + 1_000, type=kind, key="ann", rule="api", cost=1, proc=number % 6,
                node=f"node {number % 3}", source=source_at(at), line=number + 2,
            )
        )  # fmt: skip
    faults = [Fault("store_down", BROKEN_AT, HEALED_AT, HEALED_AT)]
    return Scene(History(header, operations, faults))


def figures(scene: Scene) -> FaultFigures:
    verdict = judge(scene)
    return replace(
        GOOD, holds=verdict.holds, violations=dict(verdict.counts), **recovery_of(scene)._asdict()
    )


def away_until(end: int) -> Callable[[int], str]:
    return lambda at: "fallback" if BROKEN_AT <= at < end else "engine"


def test_a_store_that_is_back_in_time_misses_no_term() -> None:
    run = figures(history(away_until(HEALED_AT + SECOND // 2)))
    assert run.missed == []
    assert run.verdict == "holds"
    assert 490 <= run.back_after_ms <= 520
    assert exit_code([run], 0) == 0


def test_a_store_that_never_comes_back_is_a_late_recovery() -> None:
    run = figures(history(away_until(ENDS_AT)))
    assert run.violations == {"late recovery": 899}
    assert run.verdict == "BROKEN"
    assert any(one.startswith("recovery: back after") for one in run.missed)
    assert exit_code([run], 0) == 1


def test_a_store_that_is_back_too_late_breaks_the_recovery_and_nothing_else() -> None:
    run = figures(history(away_until(HEALED_AT + SECOND + 20_000)))
    assert run.holds
    assert run.broken == ["recovery: back after 1021 ms, of 1000"]


def test_a_store_that_is_back_and_lost_again_is_a_late_recovery() -> None:
    def source_at(at: int) -> str:
        away = BROKEN_AT <= at < HEALED_AT or 8 * SECOND <= at < 9 * SECOND
        return "fallback" if away else "engine"

    run = figures(history(source_at))
    assert run.back_after_ms < 1_000
    assert run.violations == {"late recovery": 100}
    assert run.verdict == "BROKEN"


@pytest.mark.parametrize("strays", [5, 6])
def test_a_few_slow_answers_in_900_after_the_recovery_are_no_late_recovery(
    strays: int,
) -> None:
    slow = {8 * SECOND + EVERY_US * number for number in range(strays)}
    found = away_until(HEALED_AT)
    run = figures(history(lambda at: "fallback" if at in slow else found(at)))
    assert run.settled == 900 - 1  # The first is not after the recovery, but at its end.
    assert run.holds is (strays <= 5)


def test_answers_without_the_store_before_a_fault_are_counted_and_not_judged() -> None:
    verdict = judge(history(lambda at: "fallback" if at < HEALED_AT else "engine"))
    assert verdict.holds
    assert verdict.figures["strays"] == 100


def test_requests_that_nobody_decides_after_the_recovery_break_it() -> None:
    run = figures(
        history(away_until(HEALED_AT), lambda at: "info" if at % (20 * EVERY_US) == 0 else "allow")
    )
    assert run.back_after_ms < 1_000
    assert run.broken == ["recovery: 44 of 899 requests after it were not decided"]


def test_a_run_in_which_nobody_asks_after_the_recovery_proves_nothing() -> None:
    assert replace(GOOD, settled=0).broken == ["recovery: nobody asked after it"]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"holds": False, "violations": {"over the bound": 1}}, "promise: {'over the bound': 1}"),
        ({"holds": False, "findings": ["counters differ"]}, "promise: ['counters differ']"),
        ({"crashes": ["node 1 has ended with -11"]}, "crash: node 1 has ended with -11"),
        ({"back_after_ms": 1_000.1}, "recovery: back after 1000 ms, of 1000"),
        ({"unanswered": 3}, "recovery: 3 of 400 requests after it were not decided"),
        (
            {"terms": FaultTerms(all_answered=True), "failed": 1},
            "answers: 1 requests failed, and of 0 nothing is known",
        ),
        (
            {"terms": FaultTerms(all_answered=True), "unknown": 2},
            "answers: 0 requests failed, and of 2 nothing is known",
        ),
    ],
)
def test_each_term_that_is_missed_breaks_the_run(fields: dict[str, Any], words: str) -> None:
    run = replace(GOOD, **fields)
    assert run.missed == [words]
    assert run.verdict == "BROKEN"
    assert run.as_json()["missed"] == [words]
    assert exit_code([GOOD, run], 0) == 1
    assert exit_code([GOOD], 0) == 0


def test_late_answers_are_late_and_not_broken() -> None:
    run = replace(GOOD, late=21)
    assert run.verdict == "LATE"
    assert run.missed == ["late: 21 of 2000 answers, at most 10 in 1,000"]
    assert exit_code([run], 0) == 1


def test_one_late_answer_in_a_thousand_is_allowed_over_all_runs_of_a_fault() -> None:
    runs = [replace(GOOD, seed=seed, late=late) for seed, late in ((1, 4), (2, 0), (3, 2))]
    other = replace(GOOD, fault="F2", late=0)
    assert late_faults([*runs, other]) == {}
    assert exit_code([*runs, other], 0) == 0
    runs[2].late = 3
    assert all(one.verdict == "holds" for one in runs)
    assert late_faults([other, *runs]) == {
        "F1": "late: 7 of 6000 answers, at most 1 in 1,000",
    }
    assert exit_code([*runs, other], 0) == 1


def test_only_a_fault_that_says_so_may_be_late() -> None:
    frozen = replace(GOOD, terms=FaultTerms(late_per_mille=None, why="it stops the node"), late=500)
    some = replace(GOOD, terms=FaultTerms(late_per_mille=50, why="overload"), late=100)
    assert exit_code([frozen, some], 0) == 0
    assert exit_code([replace(some, late=101)], 0) == 1


def test_a_run_that_was_not_carried_out_fails_the_campaign() -> None:
    assert exit_code([GOOD], 1) == 1


def test_the_report_says_which_terms_were_missed(tmp_path: Path) -> None:
    runs = [replace(GOOD, crashes=["node 1 has ended with -11"]), replace(GOOD, seed=2, late=9)]
    (row,) = summary_of(runs)
    assert (row["broken"], row["in_time"]) == (1, False)
    write_report(runs, tmp_path, commit="", seconds=1.0)
    assert "crash: node 1 has ended with -11" in (tmp_path / "index.html").read_text()


class Process:
    """Stands for a node's process."""

    log = ""

    def __init__(self, code: int | None) -> None:
        self._code = code

    @property
    def running(self) -> bool:
        return self._code is None

    def wait(self) -> int | None:
        return self._code


class StubNode:
    def __init__(self, number: int, code: int | None) -> None:
        self.name, self.running = f"node {number}", Process(code)


class StubFleet:
    """Stands for a fleet that may not come back."""

    def __init__(self, codes: tuple[int | None, ...] = (None, None), *, back: bool = True) -> None:
        self.nodes = [StubNode(number, code) for number, code in enumerate(codes)]
        self._back = back

    def mend(self) -> None:
        pass

    def wait_until_decided_by_store(self) -> None:
        if not self._back:
            raise TimeoutError("waited in vain")


def test_a_node_that_ended_though_nobody_killed_it_has_crashed() -> None:
    fleet: Any = StubFleet((None, -11, 0))
    assert ended(fleet) == ["node 1 has ended with -11", "node 2 has ended with 0"]


@pytest.mark.parametrize("back", ["back", ""])
def test_a_fleet_that_does_not_come_back_fails_the_campaign_and_is_replaced(
    back: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    @contextlib.contextmanager
    def fleet_for(_: Any) -> Iterator[StubFleet]:
        made.append(StubFleet(back=bool(back)))
        yield made[-1]

    monkeypatch.setattr(campaign, "fleet_for", fleet_for)
    monkeypatch.setattr(
        campaign, "run_fault", lambda _fault, _fleet, seed, *_, **__: replace(GOOD, seed=seed)
    )
    options = argparse.Namespace(first_seed=1, seeds=2, out=tmp_path, faults=["F1"])
    running = campaign.Campaign(options)
    running.break_stores([FAULTS["F1"]])
    assert [one.seed for one in running.results] == [1, 2]
    assert len(made) == (1 if back else 2)
    assert running.failed == (0 if back else 2)
    assert exit_code(running.results, running.failed) == (0 if back else 1)
