from __future__ import annotations

import pytest

from headgate.service.live.verdict import Facts, verdict_of

BUSY = Facts(req_per_sec=659.1, deny_rate=0.038, total_requests=9, busiest_rule="login")
STORE_AWAY = BUSY._replace(
    store_down_for=44.0, gives={"no limit": ("login", "search"), "nothing": ("signup",)}
)


@pytest.mark.parametrize(
    "facts, text",
    [
        (Facts(), "All is well. No requests yet."),
        (Facts(total_requests=5), "All is well. No requests right now."),
        (BUSY, "All is well. 659 requests a second, 3.8% denied, most of them by login."),
        (
            BUSY._replace(algorithm="token_bucket", busiest_rule=None),
            (
                "All is well. Requests come in bursts, and a token bucket takes them: "
                "659 requests a second, 3.8% denied."
            ),
        ),
    ],
)
def test_a_healthy_service_has_a_good_verdict(facts: Facts, text: str) -> None:
    assert verdict_of(facts, 1_000.0) == {"level": "ok", "text": text, "problems": []}


@pytest.mark.parametrize(
    "change, code",
    [
        ({"p99_us": 5_001}, "slow"),
        ({"queue": 501}, "queue"),
        ({"free_shards": 1}, "shards-free"),
        ({"deny_rate": 0.101}, "denied-share"),
        ({"loop_late_us": 100_001}, "loop-late"),
        ({"board_stale_for": 3.0}, "board-stale"),
        ({"rules_stale_for": 3.0}, "rules-stale"),
        ({"rules_alarm": "half of them are gone"}, "rules-alarm"),
        ({"nodes_down": (("gw-3", 65.0),)}, "node-down"),
        ({"draining": True}, "draining"),
    ],
)
def test_a_crossed_threshold_is_a_warning(change: dict[str, object], code: str) -> None:
    told = verdict_of(BUSY._replace(**change), 1_000.0)  # type: ignore[arg-type]  # One field each.
    assert told["level"] == "warn"
    assert [one["code"] for one in told["problems"]] == [code]
    assert told["text"] == told["problems"][0]["text"]


@pytest.mark.parametrize(
    "field, most", [("p99_us", 5_000), ("queue", 500), ("loop_late_us", 100_000)]
)
def test_a_value_at_the_threshold_is_no_warning(field: str, most: int) -> None:
    assert verdict_of(BUSY._replace(**{field: most}), 0.0)["level"] == "ok"  # type: ignore[arg-type]  # As above.


def test_a_store_outage_comes_first_and_says_what_still_holds() -> None:
    more = {"nodes_down": (("gw-3", 65.0),), "deny_rate": 0.4, "board_stale_for": 44.0}
    told = verdict_of(STORE_AWAY._replace(**more), 1_000.0)  # type: ignore[arg-type]  # As above.
    assert told["level"] == "bad"
    assert told["text"] == "Redis does not answer, and gw-3 is down"
    first, second, third = told["problems"]
    assert third["code"] == "denied-share"
    assert first["code"] == "store-down"
    assert first["since"] == 956.0
    assert first["text"] == (
        "It has not answered for 44 s. signup denies everybody. "
        "login and search let everybody pass. It recovers automatically when Redis is back."
    )
    assert second["code"] == "node-down"


@pytest.mark.parametrize(
    "share, holds",
    [("a third", "each node gives a third of it"), ("all", "this node goes on alone")],
)
def test_shares_of_limits_are_shown_with_their_bound(share: str, holds: str) -> None:
    gives = {"nothing": ("signup",), share: ("login", "search", "4 others")}
    (problem,) = verdict_of(STORE_AWAY._replace(gives=gives), 1_000.0)["problems"]
    assert problem["text"] == (
        f"It has not answered for 44 s. Limits hold, less exactly: {holds}; a key may get up to twice its limit "
        "around the change. signup denies everybody. It recovers automatically when Redis is back."
    )


@pytest.mark.parametrize(
    "field, code", [("failed_per_sec", "checks-failing"), ("open_per_sec", "answers-open")]
)
def test_uncounted_answers_make_the_verdict_bad(field: str, code: str) -> None:
    told = verdict_of(BUSY._replace(**{field: 2.0}), 0.0)  # type: ignore[arg-type]  # One field each.
    assert (told["level"], told["problems"][0]["code"]) == ("bad", code)


def test_limits_turned_off_come_before_any_other_problem() -> None:
    told = verdict_of(STORE_AWAY._replace(all_off="a mistake in the rules"), 0.0)
    assert told["text"].startswith("All limits are turned off")
    assert told["problems"][0]["text"] == (
        "All limits on this node are turned off: a mistake in the rules. Everything passes."
    )
    passing = verdict_of(BUSY._replace(all_off="", open_per_sec=2.0), 0.0)
    assert passing["text"] == "All limits are turned off"
    failing = verdict_of(BUSY._replace(all_off="", failed_per_sec=2.0), 0.0)
    assert failing["text"] == "All limits are turned off, and checks fail"
    rules = verdict_of(BUSY._replace(rules_off=("login",)), 0.0)
    assert (rules["level"], rules["text"]) == ("warn", "Turned off by hand: login.")


def test_units_lost_between_regions_are_a_warning() -> None:
    told = verdict_of(BUSY._replace(rights_lost=7), 0.0)
    (problem,) = told["problems"]
    assert (problem["code"], problem["level"]) == ("rights-lost", "warn")
    assert problem["text"].startswith("7 units of limits kept by escrow got lost between regions.")


def test_unreachable_regions_are_named_with_what_still_holds() -> None:
    told = verdict_of(BUSY._replace(regions_cut=("asia", "us"), regions_promise="each alone"), 0.0)
    (problem,) = told["problems"]
    assert (problem["code"], problem["level"]) == ("region-cut", "warn")
    assert problem["text"] == "The regions asia and us cannot be reached. What holds: each alone."
