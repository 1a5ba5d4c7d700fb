"""Histories that the checker once judged wrong, or found right; those of real runs are cut to what they were about.

Simulations are kept here, too: if the simulator changes, its seeds lead to other histories.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.lab.history import load_history
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge

if TYPE_CHECKING:
    from headgate.lab.history import History

KEPT = Path(__file__).parent / "kept"
HOLD = {
    "bucket-of-few-nodes": "a bucket had more units at once than there were nodes, and fewer in a window",
    "counted-after-a-cut": "the same, and then the store was read",
    "cut-while-making-room": "a clock was set back, and the store cut a state when it looked for room, not when asked",
    "killed-before-charging": "a node was killed before it had charged the store for what it gave without it",
    "killed-while-charging": "a node was killed while it charged the store",
    "set-back-unseen": "a clock was set back while the store was out of reach, so states were cut only after that",
    "state-ahead-of-clock": "a state that was ahead of the clock was asked for several times, after all was over",
    "lost-reset": "a key was reset, and a failover lost that, so what it had used counted again",
    "refilled-bucket": "no node had the store, and its bucket refilled, so the first that were back found it full",
    "stepped-restart": "a store came back empty, a call without an answer was its first, and its clock was set back",
    "unheard-force": "a node that heard nothing denied a forced charge, and the store had carried it out",
}
BREAK = {
    "share-spent-twice": (
        {"fallback share": 1},
        "the store was charged for a share, and it was spent again",
    ),
    # Nothing is over its bound there: some nodes missed a slow store while others had it, and a bucket flows for both.
    "slow-store-bucket": (
        {"fallback share": 2},
        "the same, by two nodes, each time they missed the store",
    ),
}


@pytest.mark.parametrize("name", HOLD)
def test_a_history_that_kept_its_promise_holds(name: str) -> None:
    verdict = judge(Scene(load_history(KEPT / f"{name}.jsonl")))
    assert verdict.holds, (HOLD[name], verdict.findings)


@pytest.mark.parametrize("name", BREAK)
def test_a_history_that_broke_its_promise_is_found(name: str) -> None:
    counts, why = BREAK[name]
    verdict = judge(Scene(load_history(KEPT / f"{name}.jsonl")))
    assert verdict.counts == counts, (why, verdict.findings)


def test_every_history_that_is_kept_is_judged() -> None:
    kept = {path.stem for path in KEPT.glob("*.jsonl")}
    assert kept == {*HOLD, *BREAK}


# What the checker allows in them is no more than what happened.


def _counts(history: History) -> dict[str, int]:
    return dict(judge(Scene(history)).counts)


def test_one_unit_more_than_an_unheard_charge_explains_is_found() -> None:
    history = load_history(KEPT / "unheard-force.jsonl")
    for place, one in enumerate(history.operations):
        if one.f == "ledger" and one.used:
            history.operations[place] = one._replace(used=one.used + 1)
    assert _counts(history) == {"ledger": 4}


def test_a_charge_that_was_answered_explains_nothing_more() -> None:
    """The same, but it was the store that denied it."""
    history = load_history(KEPT / "unheard-force.jsonl")
    for place, one in enumerate(history.operations):
        if one.f == "force":
            history.operations[place] = one._replace(source="engine")
    assert _counts(history)["ledger"] == 4


def test_a_store_that_forgets_without_a_restart_is_found() -> None:
    history = load_history(KEPT / "stepped-restart.jsonl")
    history.faults[:] = [one for one in history.faults if one.fault != "store_restart"]
    assert _counts(history)["replay"] == 1


def test_a_store_that_forgets_before_its_restart_is_found() -> None:
    """The restart comes after the answer that shows the loss."""
    history = load_history(KEPT / "stepped-restart.jsonl")
    last = max(one.t1 for one in history.operations if one.ver)
    history.faults[:] = [
        one._replace(t0=last + 1, t1=last + 2, heal=last + 2)
        if one.fault == "store_restart"
        else one
        for one in history.faults
    ]
    assert _counts(history)["replay"] == 1


@pytest.mark.parametrize(
    "check, name", [("replay", "cut-while-making-room"), ("ledger", "counted-after-a-cut")]
)
def test_a_state_that_is_cut_by_itself_is_found(check: str, name: str) -> None:
    """The same, but no clock was set."""
    history = load_history(KEPT / f"{name}.jsonl")
    history.faults[:] = [one for one in history.faults if one.fault != "clock_step"]
    assert check in _counts(history)


def test_a_reset_that_was_copied_before_the_failover_counts() -> None:
    """Only what was done up to 60 ms before it may be lost."""
    history = load_history(KEPT / "lost-reset.jsonl")
    (failover,) = (one for one in history.faults if one.fault == "failover")
    for place, one in enumerate(history.operations):
        if one.f == "reset" and one.type == "allow" and one.t1 > failover.t0 - 60_000:
            copied = failover.t0 - 61_000
            history.operations[place] = one._replace(t0=copied, t1=copied)
    assert "false denial" in _counts(history)
