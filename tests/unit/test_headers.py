"""Headers of decisions: exact lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import Concurrency, Limiter, MemoryEngine, SlidingWindow, TokenBucket, headers
from headgate.charge import Charge
from headgate.charge_kind import ChargeKind
from headgate.decision import Context, Decision
from headgate.headers import decision_lines, header_pairs, policy_item, quoted
from headgate.rule_decisions import UNMATCHED
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate.algorithms import Limit

NOW = 1_800_000_000


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "time", lambda: NOW + 0.9)


def lines(decision: Decision, took_ns: int = 1_234_567) -> list[str]:
    text = decision_lines(decision, took_ns).decode()
    assert text.endswith("\r\n")
    return text.split("\r\n")[:-1]


def test_an_allowed_decision() -> None:
    decision = Limiter(clock=ManualClock(NOW)).hit("k", "5/10s")
    assert lines(decision) == [
        "content-type: application/json",
        'ratelimit-policy: "default";q=5;w=10',
        'ratelimit: "default";r=4;t=20',
        "x-ratelimit-limit: 5",
        "x-ratelimit-remaining: 4",
        f"x-ratelimit-reset: {NOW + 20}",
        "x-process-time: 0.001234s",
    ]


def test_a_denial_says_when_to_come_back_rounded_up() -> None:
    limiter = Limiter(clock=ManualClock(NOW))
    limiter.hit("k", "2/3s burst 1")
    denied = limiter.hit("k", "2/3s burst 1")
    assert denied.retry_after == 1.5
    found = lines(denied)
    assert found[2] == 'ratelimit: "default";r=0;t=2'
    assert found[-1] == "retry-after: 2"


def test_what_can_never_pass_has_no_time_to_come_back() -> None:
    """Neither a wait nor a reset: "now" and "in no time" would be heard as "try again"."""
    denied = Limiter(clock=ManualClock(NOW)).hit("k", "5/minute", cost=6)
    assert lines(denied) == [
        "content-type: application/json",
        'ratelimit-policy: "default";q=5;w=60',
        'ratelimit: "default";r=5',
        "x-ratelimit-limit: 5",
        "x-ratelimit-remaining: 5",
        "x-process-time: 0.001235s",
    ]


def test_of_several_limits_only_the_one_that_never_passes_has_no_time() -> None:
    charges = [Charge("a", "1/10s", 2, rule="x"), Charge("a", "5/hour", rule="y")]
    found = lines(Limiter(clock=ManualClock(NOW)).decide(charges))
    assert found[2].startswith('ratelimit: "x";r=1, "y";r=5;t=')
    assert not any(line.startswith(("retry-after", "x-ratelimit-reset")) for line in found)


def test_a_shadow_rule_is_left_out_of_the_headers() -> None:
    charges = [
        Charge("a", "5/10s", rule="x"),
        Charge("a", "1/hour", rule="trial", kind=ChargeKind.SHADOW),
    ]
    found = lines(Limiter(clock=ManualClock(NOW)).decide(charges))
    assert found[1:3] == ['ratelimit-policy: "x";q=5;w=10', 'ratelimit: "x";r=4;t=20']


def test_the_process_time_may_be_seconds() -> None:
    decision = Limiter().hit("k", "5/minute")
    assert lines(decision, 2_500_000_000)[-1] == "x-process-time: 2.500000s"


@pytest.mark.parametrize(
    "limit, item",
    [
        (SlidingWindow(5, 60_000_000), '"r";q=5;w=60'),
        (SlidingWindow(5, 500_000), '"r";q=5'),
        (SlidingWindow(5, 1_500_000), '"r";q=5'),
        (TokenBucket(5, 1_000_000, 9), '"r";q=5;w=1'),
        (Concurrency(3), '"r";q=3;qu="concurrent-requests"'),
    ],
)
def test_a_policy_names_whole_seconds_or_none(limit: Limit, item: str) -> None:
    assert policy_item(limit, "r") == item


@pytest.mark.parametrize(
    "name, text",
    [('a"b', '"a\\"b"'), ("a\\b", '"a\\\\b"'), ("é\r\nx: y", '"???x: y"'), ("100%", '"100%"')],
)
def test_a_name_is_a_string_of_printable_ascii(name: str, text: str) -> None:
    assert quoted(name) == text


def test_a_percent_sign_in_a_rule_is_only_a_sign() -> None:
    rule = Context(rule="50%d")
    decision = Decision("k", SlidingWindow(5, 60_000_000), (True, 4, 0, 60_000_000, 0), rule)
    assert lines(decision)[1] == 'ratelimit-policy: "50%d";q=5;w=60'


def test_several_limits_are_all_listed_and_the_trio_describes_the_deciding_one() -> None:
    engine = MemoryEngine(clock=ManualClock(NOW))
    limiter = Limiter(engine)
    charges = [Charge("a", "5/10s", rule="x"), Charge("a", "2/hour", rule="y")]
    limiter.decide(charges)
    limiter.decide(charges)
    found = lines(limiter.decide(charges))
    assert found[1] == 'ratelimit-policy: "x";q=5;w=10, "y";q=2;w=3600'
    assert found[2].startswith('ratelimit: "x";r=3;t=20, "y";r=0;t=')
    assert found[3:5] == ["x-ratelimit-limit: 2", "x-ratelimit-remaining: 0"]
    assert any(line.startswith("retry-after: ") for line in found)


def test_two_limits_of_one_rule_have_names_of_their_own() -> None:
    charge = Charge("a", "1/second; 100/hour", rule="x")
    decision = Limiter(clock=ManualClock(NOW)).decide([charge])
    assert lines(decision)[1] == 'ratelimit-policy: "x/1s";q=1;w=1, "x/3600s";q=100;w=3600'


def test_what_no_rule_limits_has_no_policy() -> None:
    assert lines(UNMATCHED) == ["content-type: application/json", "x-process-time: 0.001235s"]


def test_rules_that_share_a_limit_do_not_drive_each_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learnt = []
    learn = headers._learn

    def noted(limit: Limit, rule: str | None) -> tuple[Limit, bytes]:
        learnt.append(rule)
        return learn(limit, rule)

    monkeypatch.setattr(headers, "_learn", noted)
    limiter = Limiter(clock=ManualClock(NOW))
    limit = SlidingWindow(1_234, 60_000_000)
    for _ in range(10):
        for rule in ("one", "other"):
            decision = limiter.decide([Charge("k", limit, rule=rule)])
            assert lines(decision)[1] == f'ratelimit-policy: "{rule}";q=1234;w=60'
    assert learnt == ["one", "other"]


def test_a_reset_time_uses_the_clock_of_the_store() -> None:
    decision = Limiter().hit("k", "5/minute")
    here, there = (
        int(
            dict(line.split(": ") for line in text.decode().split("\r\n") if line)[
                "x-ratelimit-reset"
            ]
        )
        for text in (decision_lines(decision, 1), decision_lines(decision, 1, 3_600_000_000))
    )
    assert there - here in (3_600, 3_601)


def test_pairs_say_the_same_as_lines() -> None:
    limiter = Limiter(clock=ManualClock(NOW))
    decisions = [
        *(limiter.hit("k", "2/10s") for _ in range(3)),
        limiter.hit("k", "2/10s", cost=3),
        *(limiter.hit("many", "1/second; 5/hour") for _ in range(2)),
        limiter.decide([Charge("k", "9/minute", rule='a "%d" rule')]),
    ]
    for decision in decisions:
        told = [line for line in lines(decision)[1:] if not line.startswith("x-process-time")]
        pairs = [f"{name.decode()}: {value.decode()}" for name, value in header_pairs(decision)]
        assert pairs == told
    assert header_pairs(UNMATCHED) == []


def test_a_decision_gives_its_headers_to_any_framework() -> None:
    limiter = Limiter(clock=ManualClock(NOW))
    assert limiter.hit("k", "1/10s").headers() == {
        "RateLimit-Policy": '"default";q=1;w=10',
        "RateLimit": '"default";r=0;t=20',
        "X-RateLimit-Limit": "1",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(NOW + 20),
    }
    denied = limiter.hit("k", "1/10s")
    assert denied.headers()["Retry-After"] == str(int(denied.retry_after))
    assert UNMATCHED.headers() == {}


def test_every_line_of_a_decision_is_among_its_headers() -> None:
    """The service, the middleware and `headers()` tell the same."""
    limiter = Limiter(clock=ManualClock(NOW))
    decisions = [limiter.hit("k", "1/10s") for _ in range(2)]
    decisions += [limiter.hit("k", "2/s; 9/minute", cost=cost) for cost in (1, 3, 10)]
    for decision in decisions:
        told = dict(line.split(": ", 1) for line in lines(decision))
        del told["content-type"], told["x-process-time"]
        assert {name.lower(): value for name, value in decision.headers().items()} == told
