"""Batches: one request alone is told, word for word, what a batch of one would tell it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headgate import Decision
from headgate.clock import SystemClock
from headgate.engines.base import Hooks
from headgate.engines.redis.batch import PendingBatch, SingleCall
from headgate.engines.redis.codec import Codec
from headgate.engines.redis.keys import KeyCodec
from headgate.engines.redis.operations import Operations
from headgate.rate import limits_of

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_US = 1_800_000_000_000_000
ALLOWED, DENIED = [NOW_US, 1, 99, 0, 600_000, 0], [NOW_US, 0, 0, 5, 600_000, 0]
NOT_OURS = [NOW_US, -3, 0, 0, 0, 0]
NONSENSE: list[Any] = [
    b"abcdef",  # Six bytes can be read as six numbers.
    None,
    7,
    [],
    ALLOWED[:5],
    [*ALLOWED, 0],
    [*ALLOWED[:5], 1.5],
    [NOW_US, 1, b"99", 0, 0, 0],
    [NOW_US, 1, None, 0, 0, 0],
    [b"x", 1, 99, 0, 0, 0],
    [ALLOWED],
]


def noting(seen: list[Any], may_skip: Callable[[], bool] | None = None) -> Hooks:
    """Hooks that note what they are shown."""

    def after(decision: Decision, ticket: Any) -> Decision:
        seen.append((decision, ticket))
        return decision

    return Hooks(after, may_skip=may_skip)


def answered(kind: type[PendingBatch], reply: Any, *, receipts: bool) -> tuple[Any, list[Any]]:
    """What a caller is told who is alone in a batch of this kind, and what its hook was shown."""
    seen: list[Any] = []
    (limit,) = limits_of("100/minute", "token_bucket")
    codec = Codec(KeyCodec(), SystemClock().now_us, test_clock=False, receipts=receipts)
    operations = Operations(codec, 128)
    plain = codec.plain_maker(limit, "rule", noting(seen))

    async def main() -> Any:
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        batch = kind([(future, plain("a", "given"), operations, 0.0)])
        batch.packed()
        assert batch.answer(reply) == []
        assert future.done()
        error = future.exception()
        return (type(error), str(error)) if error else future.result()

    return asyncio.run(main()), seen


@pytest.mark.parametrize("receipts", [False, True])
@pytest.mark.parametrize("reply", [ALLOWED, DENIED, NOT_OURS, [*ALLOWED, 3], *NONSENSE], ids=repr)
def test_a_single_call_gets_the_same_answer_as_a_batch_of_one(reply: Any, receipts: bool) -> None:  # noqa: FBT001
    assert answered(SingleCall, reply, receipts=receipts) == answered(
        PendingBatch, reply, receipts=receipts
    )


def test_a_single_call_gets_its_decision_after_its_hook() -> None:
    decision, seen = answered(SingleCall, DENIED, receipts=False)
    assert isinstance(decision, Decision)
    assert (decision.key, decision.allowed, decision.retry_after_us) == ("a", False, 5)
    assert decision.rule == "rule"
    assert seen == [(decision, "given")]


@pytest.mark.parametrize("reply", NONSENSE, ids=repr)
def test_a_single_call_never_gets_an_invalid_reply(reply: Any) -> None:
    (kind, message), seen = answered(SingleCall, reply, receipts=False)
    assert kind.__name__ == "EngineError"
    assert "may have been charged" in message
    assert seen == []


@pytest.mark.parametrize("kind", [PendingBatch, SingleCall])
def test_a_cancelled_call_gets_no_answer_and_nor_does_its_hook(kind: type[PendingBatch]) -> None:
    seen: list[Any] = []
    (limit,) = limits_of("100/minute", "token_bucket")
    operations = Operations(Codec(KeyCodec(), SystemClock().now_us, test_clock=False), 128)
    plain = operations.codec.plain_maker(limit, None, noting(seen))

    async def main() -> None:
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        batch = kind([(future, plain("a"), operations, 0.0)])
        batch.packed()
        future.cancel()
        assert batch.answer(ALLOWED) == []

    asyncio.run(main())
    assert seen == []


@pytest.mark.parametrize(
    "may_skip, shown",
    [(None, "abcd"), (lambda: False, "abcd"), (lambda: True, "cd")],
    ids=["always", "not now", "now"],
)
def test_a_hook_that_may_be_skipped_is_shown_all_from_the_first_denial_on(
    may_skip: Callable[[], bool] | None, shown: str
) -> None:
    seen: list[Any] = []
    (limit,) = limits_of("100/minute", "token_bucket")
    operations = Operations(Codec(KeyCodec(), SystemClock().now_us, test_clock=False), 128)
    plain = operations.codec.plain_maker(limit, None, noting(seen, may_skip))

    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        batch = PendingBatch(
            (loop.create_future(), plain(key, key.upper()), operations, 0.0) for key in "abcd"
        )
        batch.packed()
        assert batch.answer([*ALLOWED, *ALLOWED[1:], *DENIED[1:], *ALLOWED[1:]]) == []
        return [future.result().allowed for future, *_ in batch]

    assert asyncio.run(main()) == [True, True, False, True]
    assert [(decision.key, ticket) for decision, ticket in seen] == [
        (key, key.upper()) for key in shown
    ]
