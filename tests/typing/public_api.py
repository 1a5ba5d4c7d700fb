"""The public API written out, for the type checkers. Read by mypy and pyright, never run."""

from collections.abc import Awaitable
from pathlib import Path
from typing import assert_type

from headgate import (
    AsyncLimiter,
    Charge,
    Decision,
    Limiter,
    Rate,
    RateLimitExceeded,
    Request,
    Rule,
    Rulebook,
    RulesError,
    RuleSet,
    leased,
)
from headgate.held import Slot
from headgate.held_async import AsyncSlot

limiter = Limiter()
igdb = limiter.limit("igdb:api", limit=4, window=1.0, algorithm="sliding_log", mode="blocking")


def decisions() -> None:
    decision = limiter.hit("user:42", "100/minute", cost=1, algorithm=None)
    assert_type(decision, Decision)
    assert_type(decision.allowed, bool)
    assert_type(decision.key, str)
    assert_type(decision.limit, int)
    assert_type(decision.remaining, int)
    assert_type(decision.retry_after, float)
    assert_type(decision.reset_after, float)
    assert_type(decision.algorithm, str)
    assert_type(decision.degraded, bool)
    assert_type(limiter.check("user:42", Rate(100, window=60)), Decision)
    assert_type(limiter.hit("user:42", leased("100/minute")), Decision)
    limiter.limit("user:42", "100/minute", consistency="leased").hit()
    charges = [Charge("user:42", "100/minute"), Charge("org:7", "1000/minute", cost=3)]
    assert_type(limiter.decide(charges), Decision)


def one_key() -> None:
    assert_type(igdb.acquire(cost=1, timeout=None), Decision)
    assert_type(igdb.hit(), Decision)
    assert_type(igdb.check(), Decision)
    assert_type(igdb.stats().count, int)
    assert_type(igdb.stats().window, float)
    igdb.reset()
    with igdb as decision:
        assert_type(decision, Decision)
    with igdb.reserve(cost=500) as reservation:
        reservation.settle(120)
    with limiter.reserve([Charge("a", "1/second"), Charge("b", "9/second", 5)]) as together:
        assert_type(together.settle(1, 4), bool)
        assert_type(together.costs, tuple[int, ...])
    slot = limiter.concurrency("reports", 10).slot()
    assert_type(slot.acquire(), Slot)
    slot.release()
    with limiter.concurrency("reports", 10).slot(ttl=30, timeout=0):
        pass


@igdb
def decorated(name: str, *, times: int = 1) -> list[str]:
    return [name] * times


@igdb
async def decorated_async(name: str) -> int:
    return len(name)


async def decorators_keep_the_signature() -> None:
    assert_type(decorated("a", times=2), list[str])
    assert_type(await decorated_async("a"), int)
    decorated(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def rules() -> None:
    try:
        rule_set = RuleSet.parse("rule_id: all\nidentifier: ip_address\nrate: 100/minute")
    except RulesError as error:
        assert_type([problem.line for problem in error.problems], list[int])
        raise
    assert_type(rule_set["all"], Rule)
    assert_type(list(rule_set), list[Rule])
    ruled = Limiter(rules=rule_set, on_error="closed")
    Limiter(rules="rules.yaml")
    Limiter(rules=Path("rules.yaml"))
    Limiter(rules=Rulebook(rule_set))
    Limiter(on_error="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    request = Request("GET", "/", ip="203.0.113.9", headers={"X-Team": "blue"}, cost=3)
    decision = ruled.decide_request(request)
    assert_type(decision, Decision)
    assert_type(decision.limited, bool)
    assert_type(decision.rules, tuple[Decision, ...])
    explanation = ruled.explain_request(request)
    assert_type(explanation.passes_after, float)
    assert_type([step.why for step in explanation.trace.steps], list[str])
    assert_type(ruled.rules_version, str | None)


async def rules_awaited() -> None:
    async with AsyncLimiter(rules="rules.yaml") as ruled:
        assert_type(await ruled.decide_request(Request()), Decision)
        assert_type(ruled.decide_request_nowait(Request()), Decision | Awaitable[Decision])


def errors() -> None:
    try:
        igdb.acquire()
    except RateLimitExceeded as error:
        assert_type(error.decision, Decision)
        assert_type(error.key, str)
        assert_type(error.retry_after, float)


async def the_same_awaited() -> None:
    async with AsyncLimiter() as alimiter:
        assert_type(await alimiter.hit("user:42", "100/minute"), Decision)
        limit = alimiter.limit("igdb:api", "4/second", mode="immediate")
        assert_type(await limit.acquire(), Decision)
        assert_type((await limit.stats()).remaining, int)
        async with limit as decision:
            assert_type(decision, Decision)
        async with limit.reserve(cost=500) as reservation:
            await reservation.settle(120)
        async with alimiter.reserve([Charge("a", "1/second")], timeout=1) as together:
            assert_type(await together.settle(1), bool)
        slot = alimiter.concurrency("reports", 10).slot()
        assert_type(await slot.acquire(), AsyncSlot)
        await slot.release()
        async with alimiter.concurrency("reports", 10).slot(ttl=30, timeout=0):
            pass


def mails_of(user: str, text: str = "") -> str:
    """Make a key of a call's arguments."""
    return f"mails:{user}:{text[:1]}"


@limiter.limit(mails_of, "5/hour")
def send_mail(user: str, text: str = "") -> int:
    """Send a mail."""
    return len(user + text)


assert_type(send_mail("ada", text="hello"), int)
assert_type(limiter.limit(mails_of, "5/hour").of("ada").stats().algorithm, str)


async def keyed() -> None:
    """Keys from arguments, awaited."""
    alimiter = AsyncLimiter()

    @alimiter.limit(mails_of, "5/hour")
    async def send(user: str) -> int:
        return len(user)

    assert_type(await send("ada"), int)
