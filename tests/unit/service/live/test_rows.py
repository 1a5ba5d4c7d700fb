"""Rows of the tables, and the tests that choose an algorithm, in words."""

from typing import Any

import pytest

from headgate.service.live.rows import levels_of, node_row, rule_row, tests_of as chosen_by

NODE: dict[str, Any] = {
    "id": "gw-2",
    "address": "10.0.4.12:8080",
    "state": "Up",
    "draining": False,
    "you": False,
    "age": 0.4,
    "req_per_sec": 224.0,
    "p99_us": 790,
    "shards": None,
}
THRESHOLDS = {
    "burst": {"enter": 3.0, "leave": 1.5},
    "abuse": {"enter": 0.5, "leave": 0.3},
    "abuse_rate": {"enter": 20.0, "leave": 10.0},
}


@pytest.mark.parametrize(
    "change, alone, level, note",
    [
        ({}, False, "ok", "10.0.4.12:8080"),
        ({"address": "gw-2"}, False, "ok", ""),
        ({"you": True, "shards": 1.0}, True, "ok", "this node, 1 shard"),
        ({"shards": 12.0}, False, "ok", "10.0.4.12:8080, 12 shards"),
        ({"draining": True}, False, "warn", "is ending"),
        ({"age": 44.0}, True, "unknown", "up, 44 s ago"),
        ({"age": 65.0, "state": "Down"}, True, "bad", "down, 65 s"),
    ],
)
def test_a_node_row_has_a_level_and_a_note(
    change: dict[str, Any], *, alone: bool, level: str, note: str
) -> None:
    row = node_row(NODE | change, alone=alone)
    assert (row["level"], row["note"]) == (level, note)
    is_known = level in {"ok", "warn"}
    assert (row["req_per_sec"], row["p99_us"]) == ((224.0, 790) if is_known else (None, None))


@pytest.mark.parametrize(
    "mode, allowed, denied, shadow, share, hot",
    [
        ("enforced", 0.0, 0.0, 0.0, 0.0, False),
        ("enforced", 9.0, 1.0, 0.0, 0.1, True),
        ("enforced", 0.9, 0.9, 0.0, 0.5, False),
        ("enforced", 91.0, 9.0, 0.0, 0.09, False),
        ("shadow", 44.0, 0.0, 11.0, 0.25, False),
        ("off", 5.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_a_rule_is_highlighted_from_a_tenth_and_one_per_second_and_a_shadow_never(
    mode: str, allowed: float, denied: float, shadow: float, share: float, *, hot: bool
) -> None:
    row = rule_row({"mode": mode, "allowed": allowed, "denied": denied, "shadow_denied": shadow})
    assert (row["share"], row["hot"]) == (share, hot)
    assert row["denials"] == (shadow if mode == "shadow" else denied)


def test_each_measure_has_its_threshold_and_its_share_of_the_bar() -> None:
    traffic = {"deny_rate": 0.038, "req_per_sec": 659.1, "burst_ratio": 0.0}
    backoff, bucket, window = chosen_by(traffic, THRESHOLDS)
    assert [one["when"] for one in (backoff, bucket, window)] == ["if both", "else, if", "else"]
    denied, requests = backoff["measures"]
    assert denied == {
        "name": "denied, above 50%",
        "leave": "left below 30%",
        "text": "3.8%",
        "share": 0.038,
    }
    assert (requests["name"], requests["text"]) == ("requests, above 20 /s", "659 /s")
    (burst,) = bucket["measures"]
    assert (burst["name"], burst["text"], burst["share"]) == ("burst ratio, above 3", "–", 0.0)
    assert window["measures"] == []


@pytest.mark.parametrize(
    "rate, share, p99_us, denied, latency",
    [
        (659.0, 0.038, 840, {}, {}),
        (659.0, 0.1, None, {"level": "warn", "tag": "above 10%"}, {}),
        (0.5, 1.0, 5_000, {}, {"level": "warn", "tag": "above 5 ms"}),
        (1.0, 0.5, 25_000, {"level": "bad", "tag": "above 50%"}, {"level": "bad", "tag": "above 25 ms"}),
    ],
)  # fmt: skip
def test_a_figure_says_which_threshold_it_has_crossed(
    *, rate: float, share: float, p99_us: int | None, denied: Any, latency: Any
) -> None:
    traffic = {"req_per_sec": rate, "deny_rate": share}
    levels = levels_of({"traffic": traffic, "latency_us": {"p99": p99_us}})
    assert levels == {"denied": denied, "latency": latency}
