"""Deciding a request by rules: all of them or none, shadows apart, and every way an engine can fail."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, EngineError, Limiter, MemoryEngine, RateLimitExceeded, UsageError
from headgate.algorithms.base import MAX_EXACT
from headgate.engines.base import Awaited
from headgate.rules.request import Request
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours
from tests.servers.process import free_ports

from .rules.making import per_minute, rule, rule_set, rulebook

if TYPE_CHECKING:
    from pathlib import Path

    from headgate.decision import Decision
    from headgate.rules.model import Rule
    from tests.servers.redis import RedisServer

IP = "203.0.113.9"
REQUEST = Request("GET", "/a/b", ip=IP)


class Both:
    """A limiter for threads and one for asyncio on engines of their own; they must say the same."""

    def __init__(self, *rules: Rule, **settings: Any) -> None:
        self.clock = ManualClock()
        self.plain = Limiter(MemoryEngine(clock=self.clock), rules=rule_set(*rules), **settings)
        self.awaited = AsyncLimiter(
            MemoryEngine(clock=self.clock), rules=rule_set(*rules), **settings
        )

    def decide(self, request: Request = REQUEST) -> Decision:
        decision = self.plain.decide_request(request)
        assert asyncio.run(self.awaited.decide_request(request)) == decision
        return decision


def answers(decision: Decision) -> list[tuple[str | None, bool, str]]:
    return [(one.rule, one.allowed, one.source) for one in decision.rules]


def test_a_request_that_one_rule_denies_is_charged_by_none() -> None:
    both = Both(rule("tight", 1), rule("wide", 5))
    assert both.decide().allowed
    for denied in [both.decide() for _ in range(3)]:
        assert answers(denied) == [("tight", False, "engine"), ("wide", True, "engine")]
        assert [one.remaining for one in denied.rules] == [0, 4]


@pytest.mark.parametrize("path", ["/a/b%00", "/a/b\n", "/%zz", "/%c0%ae", "/a" * 300])
def test_a_path_that_cannot_be_read_is_denied_unless_it_is_to_pass(path: str) -> None:
    request = Request("GET", path, ip=IP)
    both = Both(rule("any", 1))
    for _ in range(3):
        denied = both.decide(request)
        assert (denied.allowed, denied.never, denied.retry_after) == (False, True, math.inf)
    assert both.decide().remaining == 0  # Nothing was counted.
    explained = both.plain.explain_request(request)
    assert (explained.allowed, explained.passes_after) == (False, math.inf)
    assert explained.refused == request.path_refused
    passing = Both(rule("any", 1), bad_paths="pass")
    assert [passing.decide(request).allowed for _ in range(2)] == [True, False]
    assert passing.plain.explain_request(request).refused is None


def test_what_to_do_with_bad_paths_is_one_of_two() -> None:
    with pytest.raises(UsageError, match="bad_paths must be 'deny' or 'pass', not 'maybe'"):
        Limiter(bad_paths="maybe")  # type: ignore[arg-type]


def test_a_disguised_path_shares_the_count_of_what_it_may_mean() -> None:
    both = Both(rule("login", 1, path="/login"))
    assert both.decide(Request("POST", "/login", ip=IP)).allowed
    for path in ("/x%2f..%2flogin", "\\login", "/login%5C", "/a%2f..\\login"):
        denied = both.decide(Request("POST", path, ip=IP))
        assert (denied.allowed, denied.rule) == (False, "login")


def test_the_rule_that_denies_speaks() -> None:
    both = Both(rule("wide", 5), rule("tight", 1))
    assert both.decide().rule == "tight"
    denied = both.decide()
    assert (denied.rule, denied.limit, denied.allowed) == ("tight", 1, False)


def test_priority_breaks_ties_in_who_speaks() -> None:
    both = Both(rule("second", 3, priority=2), rule("first", 3, priority=1, by="global"))
    assert [both.decide().rule for _ in range(4)] == ["first"] * 4


def test_one_rule_is_answered_by_the_fast_path_with_its_name() -> None:
    both = Both(rule("only", 2, path="/a/*"))
    decisions = [both.decide() for _ in range(3)]
    assert [(one.rule, one.allowed, one.remaining) for one in decisions] == [
        ("only", True, 1),
        ("only", True, 0),
        ("only", False, 0),
    ]
    assert answers(decisions[0]) == [("only", True, "engine")]


def test_two_rules_of_the_same_limit_and_key_count_apart() -> None:
    both = Both(rule("a", 2, path="/a/*"), rule("b", 2, path="/b/*"))
    assert [both.decide(Request(path=f"/{at}/x", ip=IP)).remaining for at in "aab"] == [1, 0, 1]


def test_a_request_that_no_rule_is_about_passes_and_says_so() -> None:
    decision = Both(rule(path="/b")).decide()
    assert decision
    assert (decision.limited, decision.rule, decision.rules) == (False, None, ())
    assert (decision.algorithm, decision.limit, decision.remaining) == (
        "none",
        MAX_EXACT,
        MAX_EXACT,
    )
    assert (decision.retry_after, decision.reset_after, decision.window) == (0, 0, 0)
    assert repr(decision) == "<Decision allowed: no limit applied>"


def test_shadows_are_reported_and_deny_no_request() -> None:
    both = Both(rule("shadow", 1, shadow=True), rule("real", 3))
    decisions = [both.decide() for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert {decision.rule for decision in decisions} == {"real"}
    assert answers(decisions[1]) == [("shadow", False, "shadow"), ("real", True, "engine")]


def test_a_request_that_only_shadows_are_about_passes() -> None:
    both = Both(rule("shadow", 1, shadow=True))
    decisions = [both.decide() for _ in range(2)]
    assert [(one.allowed, one.limited, one.rule) for one in decisions] == [(True, False, None)] * 2
    assert [answers(one) for one in decisions] == [
        [("shadow", True, "shadow")],
        [("shadow", False, "shadow")],
    ]


def test_a_request_without_its_identifier_can_be_denied_for_good() -> None:
    decision = Both(rule(by="user_id", on_missing="deny")).decide()
    assert (decision.allowed, decision.never, decision.retry_after) == (False, True, math.inf)
    assert Both(rule(by="user_id", on_missing="deny")).decide(Request(user_id="42")).allowed


def test_a_limiter_without_rules_says_so() -> None:
    limiter = Limiter()
    assert limiter.rules_version is None
    with pytest.raises(UsageError, match="has no rules"):
        limiter.decide_request(REQUEST)
    with pytest.raises(UsageError, match="has no rules"):
        limiter.explain_request(REQUEST)


def test_rules_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n  - {rule_id: all, identifier: ip_address, rate: 1/minute}\n")
    for rules in (file, str(file), f"file:{file}"):
        with Limiter(rules=rules) as limiter:
            assert [limiter.decide_request(REQUEST).allowed for _ in "12"] == [True, False]
            assert len(limiter.rules_version or "") == 16

    async def awaited() -> Decision:
        async with AsyncLimiter(rules=file) as limiter:
            return await limiter.decide_request(REQUEST)

    assert asyncio.run(awaited()).rule == "all"


def test_rules_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="rules must be"):
        Limiter(rules=7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_error must be"):
        Limiter(on_error="maybe")  # type: ignore[arg-type]


class Changing:
    """Rules that a test changes, in the shape of those that follow a source."""

    def __init__(self, *rules: Rule) -> None:
        self.current = rulebook(*rules)

    def close(self) -> None:
        raise AssertionError("whoever opened these closes them")


@pytest.mark.parametrize("others", [(), (rule("other", 100),)], ids=["alone", "with others"])
def test_a_changed_limit_keeps_what_was_used_and_holds_at_once(others: tuple[Rule, ...]) -> None:
    rules = Changing(rule("r", 2), *others)
    with Limiter(clock=ManualClock(), rules=rules) as limiter:
        assert [limiter.decide_request(REQUEST).allowed for _ in range(3)] == [True, True, False]
        rules.current = rulebook(rule("r", 4), *others)
        assert [limiter.decide_request(REQUEST).allowed for _ in range(3)] == [True, True, False]
        rules.current = rulebook(rule("r", 3), *others)
        assert not limiter.decide_request(REQUEST)


@on_flavours("redis_server", "redis-7.0")
def test_a_denial_of_the_old_limit_is_not_remembered_for_the_new_one(
    redis_server: RedisServer,
) -> None:
    """The deny cache stands in front of this engine."""
    rules = Changing(rule("r", 1))
    with Limiter(redis_server.url, rules=rules) as limiter:
        decisions = [limiter.decide_request(REQUEST) for _ in range(3)]
        assert [(one.allowed, one.source) for one in decisions] == [
            (True, "engine"),
            (False, "engine"),
            (False, "cache"),
        ]
        rules.current = rulebook(rule("r", 2))
        assert limiter.decide_request(REQUEST).allowed


@on_flavours("redis_server", "redis-7.0")
def test_redis_decides_by_rules_as_memory_does(redis_server: RedisServer) -> None:
    rules = rule_set(
        rule("shadow", 1, shadow=True), rule("a", 2, path="/a/*"), rule("all", 3, by="global")
    )
    requests = [
        REQUEST,
        REQUEST,
        Request(path="/b"),
        REQUEST,
        Request(path="/b"),
        Request(path="/b"),
    ]

    def story(decisions: list[Decision]) -> list[Any]:
        return [(one.allowed, one.rule, one.remaining, answers(one)) for one in decisions]

    with Limiter(clock=ManualClock(), rules=rules) as memory:
        expected = story([memory.decide_request(request) for request in requests])
    with Limiter(redis_server.url, namespace="sync", rules=rules) as limiter:
        assert story([limiter.decide_request(request) for request in requests]) == expected

    async def awaited() -> list[Decision]:
        async with AsyncLimiter(redis_server.url, namespace="async", rules=rules) as limiter:
            return [await limiter.decide_request(request) for request in requests]

    assert story(asyncio.run(awaited())) == expected


FAILURES: dict[str, tuple[list[str | None], str, tuple[bool, str] | None]] = {
    "all open": (["open", "open"], "raise", (True, "open")),
    "one closed": (["open", "closed"], "raise", (False, "closed")),
    "closed wins over raise": (["closed", None], "raise", (False, "closed")),
    "raise wins over open": (["open", None], "raise", None),
    "the limiter says open": (["open", None], "open", (True, "open")),
    "the limiter says closed": (["open", None], "closed", (False, "closed")),
    "the rule says it itself": (["open"], "closed", (True, "open")),
    "one alone": (["closed"], "open", (False, "closed")),
    "one alone raises": ([None], "raise", None),
}


@pytest.mark.parametrize("says, limiter_says, expected", FAILURES.values(), ids=FAILURES)
def test_when_the_engine_fails(
    says: list[Any], limiter_says: Any, expected: tuple[bool, str] | None
) -> None:
    """Nobody listens at this port, so the real engine really fails."""
    url = f"redis://127.0.0.1:{free_ports(1)[0]}?deadline=0.05"
    rules = rule_set(*[rule(f"r{i}", on_error=one) for i, one in enumerate(says)])

    def plain() -> Decision:
        with Limiter(url, rules=rules, on_error=limiter_says) as limiter:
            return limiter.decide_request(REQUEST)

    async def awaited() -> Decision:
        async with AsyncLimiter(url, rules=rules, on_error=limiter_says) as limiter:
            return await limiter.decide_request(REQUEST)

    if expected is None:
        with pytest.raises(EngineError):
            plain()
        with pytest.raises(EngineError):
            asyncio.run(awaited())
        return
    decision = plain()
    assert asyncio.run(awaited()) == decision
    assert (decision.allowed, decision.source) == expected
    assert decision.degraded
    assert (decision.remaining, decision.retry_after) == (0, 0 if expected[0] else 1)
    assert [one.rule for one in decision.rules] == [f"r{i}" for i in range(len(says))]


def test_a_shadow_denies_no_request_even_if_the_engine_fails() -> None:
    shadow = rule("shadow", shadow=True, on_error="closed")
    with Limiter(
        f"redis://127.0.0.1:{free_ports(1)[0]}?deadline=0.05", rules=rule_set(shadow)
    ) as limiter:
        decision = limiter.decide_request(REQUEST)
    assert (decision.allowed, decision.limited, decision.degraded) == (True, False, True)
    assert answers(decision) == [("shadow", True, "shadow")]


def test_nothing_is_awaited_where_nothing_has_to_be() -> None:
    engine = Awaited(MemoryEngine(clock=ManualClock()))
    rules = rulebook(rule("a", 1, path="/a/*"), rule("b", path="/b"), rule("c", path="/b"))
    limiter = AsyncLimiter(engine, rules=rules)
    for path, allowed in [("/a/x", True), ("/a/x", False), ("/b", True), ("/c", True)]:
        decision: Any = limiter.decide_request_nowait(Request(path=path, ip=IP))
        assert decision.allowed is allowed


@on_flavours("redis_server", "redis-7.0")
def test_a_cached_denial_is_answered_without_awaiting(redis_server: RedisServer) -> None:
    async def story() -> list[Any]:
        async with AsyncLimiter(redis_server.url, rules=rulebook(rule("a", 1))) as limiter:
            for _ in range(2):
                await limiter.decide_request(REQUEST)
            decision: Any = limiter.decide_request_nowait(REQUEST)
            return [decision.allowed, decision.source]

    assert asyncio.run(story()) == [False, "cache"]


def test_an_explanation_takes_nothing_and_says_when_it_will_pass() -> None:
    both = Both(
        rule("tight", 1), rule("wide", 5), rule("shadow", 1, shadow=True), rule("b", path="/b")
    )
    for passes_after in (0, 0):
        explanation = both.plain.explain_request(REQUEST)
        assert (explanation.allowed, explanation.passes_after) == (True, passes_after)
    both.decide()
    both.clock.advance(10)
    explanation = both.plain.explain_request(REQUEST)
    awaited = asyncio.run(both.awaited.explain_request(REQUEST))
    assert awaited.answers == explanation.answers
    assert awaited.trace.as_json() == explanation.trace.as_json()
    assert (explanation.allowed, explanation.passes_after) == (False, 50)
    assert [(one.rule, one.allowed) for one in explanation.answers] == [
        ("tight", False),
        ("wide", True),
        ("shadow", False),
    ]
    assert [one.source for one in explanation.answers] == ["engine", "engine", "shadow"]
    assert [one.remaining for one in explanation.of("wide")] == [4]
    assert [step.outcome for step in explanation.trace.steps] == [
        "enforced",
        "enforced",
        "shadow",
        "not matched",
    ]


def test_what_is_never_allowed_never_passes() -> None:
    explanation = Both(rule(limits=per_minute(0))).plain.explain_request(REQUEST)
    assert (explanation.allowed, explanation.passes_after) == (False, math.inf)


def test_a_request_that_no_rule_is_about_can_be_explained() -> None:
    explanation = Both(rule(path="/b")).plain.explain_request(REQUEST)
    assert (explanation.allowed, explanation.answers) == (True, ())


def test_a_denial_can_be_raised() -> None:
    limiter = Both(rule("r", 0)).plain
    assert str(RateLimitExceeded(limiter.decide_request(REQUEST))).endswith(f"'{IP}'")


def test_a_rulebook_is_taken_as_it_is() -> None:
    book = rulebook(rule())
    assert Limiter(rules=book)._rules.current is book
