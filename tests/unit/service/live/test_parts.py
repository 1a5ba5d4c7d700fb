"""What a node depends on, in words."""

from typing import Any

import pytest

from headgate.service.live.parts import parts_of

WELL: dict[str, Any] = {
    "now": 1_000.0,
    "store": {
        "kind": "redis",
        "state": "up",
        "since": 900.0,
        "p99_us": 614,
        "queue": 3,
        "problem": None,
    },
    "board": {"state": "ok", "age": 0.4, "problem": None},
    "rules": {"state": "ok", "revision": 41, "age": 0.0, "problem": None},
    "loop_lag_us": 3_000,
}


def told(tick: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["name"], one["text"], one["level"]) for one in parts_of(tick)]


def test_what_is_well_has_no_level() -> None:
    assert told(WELL) == [
        ("Redis", "answers in 0.61 ms, queue 3", ""),
        ("Board", "in touch with all nodes", ""),
        ("Rules", "revision 41", ""),
        ("Event loop", "3 ms late at most", ""),
    ]


@pytest.mark.parametrize(
    "store, text, level",
    [
        ({"kind": "memory"}, "in this process", ""),
        ({"p99_us": None}, "answers, queue 3", ""),
        ({"state": "down", "since": 956.0}, "no answer for 44 s", "bad"),
        ({"state": "down", "since": None}, "does not answer", "bad"),
        ({"shards": {"own": 9, "free": 0, "unconfirmed": 2}}, "commits in 0.61 ms, 2 unconfirmed", ""),
        ({"shards": {"own": 9, "free": 4, "unconfirmed": 2}}, "commits in 0.61 ms, 4 shards with nobody", "warn"),
    ],
)  # fmt: skip
def test_the_store(store: dict[str, Any], text: str, level: str) -> None:
    assert told(WELL | {"store": WELL["store"] | store})[0][1:] == (text, level)


@pytest.mark.parametrize(
    "rules, text, level",
    [
        ({"state": "none"}, "none", ""),
        ({"revision": None}, "the starter rules", ""),
        ({"state": "stale", "age": 300.0}, "5 min old", "warn"),
        ({"state": "alarm", "problem": "half of them are gone"}, "half of them are gone", "warn"),
        ({"state": "alarm"}, "a change was refused", "warn"),
    ],
)
def test_the_rules(rules: dict[str, Any], text: str, level: str) -> None:
    assert told(WELL | {"rules": WELL["rules"] | rules})[2][1:] == (text, level)


def test_a_board_that_is_out_of_reach_and_a_late_loop() -> None:
    tick = WELL | {
        "board": {"state": "stale", "age": 44.0, "problem": "refused"},
        "loop_lag_us": 101_000,
    }
    assert told(tick)[1] == ("Board", "44 s old", "warn")
    assert parts_of(tick)[1]["problem"] == "refused"
    assert told(tick)[3] == ("Event loop", "101 ms late at most", "warn")
