"""Decorators: a function that acquires before it runs, and keeps its name and signature.

Coroutine functions wait in their event loop, and so do async generator functions: these acquire when the first
item is asked for, because calling one only makes the generator. Everything else acquires when it is called,
generator functions too.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

P = ParamSpec("P")
R = TypeVar("R")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function does its work in an event loop."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def limited(function: Callable[P, R], acquire: Callable[P, object]) -> Callable[P, R]:
    """The function, acquiring on every call; `acquire` gets the arguments."""

    @functools.wraps(function)
    def acquiring(*args: P.args, **kwargs: P.kwargs) -> R:
        acquire(*args, **kwargs)
        return function(*args, **kwargs)

    return acquiring


def limited_async(
    function: Callable[P, R], acquire: Callable[P, Awaitable[object]]
) -> Callable[P, R]:
    """The same for a function that `is_async`."""
    asynchronous: Callable[P, Any] = function

    @functools.wraps(function)
    async def acquiring(*args: P.args, **kwargs: P.kwargs) -> Any:
        await acquire(*args, **kwargs)
        return await asynchronous(*args, **kwargs)

    @functools.wraps(function)
    async def generating(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Any, Any]:
        await acquire(*args, **kwargs)
        inner = asynchronous(*args, **kwargs)
        step = anext(inner)
        try:  # What `yield from` would do, which async generators do not have.
            while True:
                item = await step
                try:
                    step = inner.asend((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - the generator inside decides
                    step = inner.athrow(error)
        except StopAsyncIteration:
            return
        finally:
            await inner.aclose()

    is_generator = inspect.isasyncgenfunction(function)
    return generating if is_generator else acquiring  # type: ignore[return-value]
