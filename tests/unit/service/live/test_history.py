from __future__ import annotations

from headgate.adaptive import Choice
from headgate.board import Second
from headgate.service.live.history import KEPT, LiveHistory, Switches


def noted(*batches: list[Second], alone: bool = False) -> LiveHistory:
    history = LiveHistory()
    for seconds in batches:
        history.note(seconds, 800, 1.5, alone=alone)
    return history


def test_unseen_seconds_are_none_and_not_zero() -> None:
    frame = noted([Second(100, 10, 1)], [Second(103, 5, 5)]).frame()
    assert frame["from"] == 100
    assert frame["allowed"] == [9, None, None, 0]
    assert frame["denied"] == [1, None, None, 5]
    assert frame["p99_us"] == [800, None, None, 800]


def test_late_counts_correct_earlier_ones() -> None:
    frame = noted([Second(100, 10, 1)], [Second(100, 12, 2), Second(101, 3, 0)]).frame()
    assert frame["allowed"] == [10, 3]
    assert frame["burst_ratio"] == [1.5, 1.5]


def test_history_covers_fifteen_minutes() -> None:
    history = noted(*([Second(at, 1, 0)] for at in range(2 * KEPT)))
    frame = history.frame()
    assert frame["from"] == KEPT
    assert len(frame["allowed"]) == KEPT
    assert len(history._seen) == KEPT


def test_history_marks_the_spans_of_one_node_alone() -> None:
    history = noted([Second(100, 1, 0)], [Second(101, 1, 0)], alone=True)
    history.note([Second(102, 1, 0)], None, 0.0, alone=False)
    history.note([Second(110, 1, 0)], None, 0.0, alone=True)
    assert history.frame()["alone"] == [[100, 102], [110, 111]]


def choice(epoch: int, algorithm: str, at: int) -> Choice:
    return Choice(epoch, algorithm, at * 1_000_000, f"reason {epoch}")


def test_history_includes_the_choice_in_force_at_its_start() -> None:
    switches = Switches()
    assert switches.note(choice(1, "sliding_window", 10), 0.0) is None
    assert switches.note(choice(1, "sliding_window", 10), 0.0) is None
    told = switches.note(choice(2, "token_bucket", 20), 0.0)
    assert told is not None
    assert (told["from"], told["to"], told["at"]) == ("sliding_window", "token_bucket", 20.0)
    switches.note(choice(3, "exponential_backoff", 30), 0.0)
    shown = [(one["from"], one["to"]) for one in switches.frame(25.0)]
    assert shown == [(None, "token_bucket"), ("token_bucket", "exponential_backoff")]
