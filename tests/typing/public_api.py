"""The public API written out, for the type checkers. Read by mypy and pyright, never run."""

from typing import assert_type

from headgate import AsyncLimiter, Charge, Decision, Limiter, Rate, RateLimitExceeded

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
        async with alimiter.concurrency("reports", 10).slot(ttl=30, timeout=0):
            pass
