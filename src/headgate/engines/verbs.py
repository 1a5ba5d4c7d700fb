"""Methods that are written once for blocking and async engines.

Such a verb is a generator. It yields what a call of the engine returned, and is sent its result: where the engine
blocks, that is the same thing, and else what was yielded is awaited first. An exception of the call is raised inside
the verb either way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from .optional import SettlesTogether

T = TypeVar("T")

Verb: TypeAlias = Generator[Any, Any, T]


def run(verb: Verb[T]) -> T:
    """Run a verb on an engine that blocks: what it yields is the result."""
    result: Any = None
    try:
        while True:
            result = verb.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


async def run_async(verb: Verb[T]) -> T:
    """Run a verb on an engine that is awaited."""
    try:
        awaitable = verb.send(None)
        while True:
            try:
                result = await awaitable
            except BaseException as error:  # noqa: BLE001 - the verb tidies up and raises it again
                awaitable = verb.throw(error)
            else:
                awaitable = verb.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


def settle_each(engine: Any, settlements: Sequence[tuple[str, int]]) -> Verb[None]:
    """Settle several reservations, given their tokens and real costs: in one call, if the engine has one for it."""
    if isinstance(engine, SettlesTogether):
        yield engine.settle_each(settlements)
        return
    for token, actual in settlements:
        yield engine.settle(token, actual)
