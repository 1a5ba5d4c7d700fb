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
    "regions": None,
}
RIGHTS: dict[str, Any] = {
    "lost": 0,
    "lost_at": None,
    "others": [
        {"region": "asia", "asked": 0, "unanswered": 0, "received": 0, "given": 40},
        {"region": "us", "asked": 128, "unanswered": 3, "received": 2_310, "given": 900},
    ],
}
REGIONS: dict[str, Any] = {
    "here": "eu",
    "others": [
        {"region": "asia", "up": True, "lag": 0.31, "heard": 0.2},
        {"region": "us", "up": True, "lag": 0.2, "heard": 0.2},
    ],
    "rights": None,
}


def told(tick: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["name"], one["text"], one["level"]) for one in parts_of(tick)]


def test_healthy_parts_have_no_level() -> None:
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
        ({"shards": {"own": 9, "free": 4, "unconfirmed": 2}}, "4 shards without an owner", "warn"),
    ],
)  # fmt: skip
def test_the_store_part_shows_its_state(store: dict[str, Any], text: str, level: str) -> None:
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
def test_the_rules_part_shows_their_state(rules: dict[str, Any], text: str, level: str) -> None:
    assert told(WELL | {"rules": WELL["rules"] | rules})[2][1:] == (text, level)


def test_an_unreachable_board_and_a_late_loop_are_warnings() -> None:
    tick = WELL | {
        "board": {"state": "stale", "age": 44.0, "problem": "refused"},
        "loop_lag_us": 101_000,
    }
    assert told(tick)[1] == ("Board", "44 s old", "warn")
    assert parts_of(tick)[1]["details"] == "refused"
    assert told(tick)[3] == ("Event loop", "101 ms late at most", "warn")


def of_regions(change: dict[str, Any]) -> list[tuple[str, str, str]]:
    return told(WELL | {"regions": REGIONS | change})[4:]


def test_connected_regions_have_no_level_and_no_rights_without_escrow() -> None:
    assert of_regions({}) == [("Region eu", "asia 0.3 s, us 0.2 s behind", "")]
    many = [{"region": f"r{lag}", "up": True, "lag": float(lag), "heard": 0.2} for lag in range(5)]
    assert of_regions({"others": many}) == [("Region eu", "5 others, 4.0 s behind at most", "")]


def test_an_unreachable_region_is_a_warning() -> None:
    asia, us = REGIONS["others"]
    cut = {"others": [asia | {"up": False, "lag": None, "heard": None}, us]}
    assert of_regions(cut) == [("Region eu", "asia cut off", "warn")]
    silent = {"others": [asia, us | {"up": False, "heard": 12.0}]}
    part = parts_of(WELL | {"regions": REGIONS | silent})[4]
    assert part["details"] == "us was last heard from 12 s ago"


def test_rights_are_shown_as_asked_received_and_given_in_total_and_by_region() -> None:
    _, part = parts_of(WELL | {"regions": REGIONS | {"rights": RIGHTS}})[4:]
    assert (part["name"], part["level"]) == ("Rights", "")
    assert part["text"] == "128 asks, got 2,310, gave 940"
    assert part["details"].endswith(
        "asia: 0 asks, got 0, gave 40; us: 128 asks, got 2,310, gave 900, 3 unanswered."
    )


@pytest.mark.parametrize(
    "ago, text, level",
    [(240.0, "7 units, 4 min ago", "warn"), (7_300.0, "7 units, 2 h ago", "")],
)
def test_lost_units_are_a_warning_for_an_hour_and_a_number_after_it(
    ago: float, text: str, level: str
) -> None:
    rights = RIGHTS | {"lost": 7, "lost_at": WELL["now"] - ago}
    assert of_regions({"rights": rights})[2] == ("Rights lost", text, level)
