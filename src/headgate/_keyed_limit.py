"""A limit whose key comes from the arguments of a call: one count per user, file or host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ._decorator import is_async, limited, limited_async
from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .aio import AsyncKeyLimit
    from .limiter import KeyLimit

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Awaitable[Any] | AsyncIterator[Any]")
L = TypeVar("L", bound="KeyLimit | AsyncKeyLimit")


class _Keyed(Generic[L]):
    """A key function, and the limit of each of its keys."""

    def __init__(self, key: Callable[..., str], bound: Callable[[str], L]) -> None:
        self._key = key
        self._bound = bound

    def of(self, *args: Any, **kwargs: Any) -> L:
        """The limit of a call with these arguments, to inspect or reset it."""
        return self._bound(self._key(*args, **kwargs))


class KeyedLimit(_Keyed["KeyLimit"]):
    """A decorator that makes each call acquire a unit of its own key.

    >>> from headgate import Limiter
    >>> @Limiter().limit(lambda user: f"mails:{user}", "1/hour", mode="immediate")
    ... def send_mail(user):
    ...     return f"sent to {user}"
    >>> send_mail("ada"), send_mail("grace")
    ('sent to ada', 'sent to grace')
    >>> send_mail("ada")
    Traceback (most recent call last):
    headgate.errors.RateLimitExceeded: Rate limit exceeded for key 'mails:ada'

    The key function is called with the arguments of the call, as they were given.
    """

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` acquire a unit of its key first."""
        if not callable(function):
            raise UsageError(f"a limit decorates a function, not {function!r:.80}")

        def acquire(*args: P.args, **kwargs: P.kwargs) -> object:
            return self.of(*args, **kwargs).acquire()

        def from_loop(*args: P.args, **kwargs: P.kwargs) -> Awaitable[object]:
            return self.of(*args, **kwargs).__aenter__()

        if is_async(function):
            return limited_async(function, from_loop)
        return limited(function, acquire)


class AsyncKeyedLimit(_Keyed["AsyncKeyLimit"]):
    """`KeyedLimit` for coroutine functions and async generator functions."""

    def __call__(self, function: Callable[P, A]) -> Callable[P, A]:
        """Make every call of the function acquire a unit of its key first."""
        if not is_async(function):
            raise UsageError(f"{function!r} is not a coroutine function; limit it with a Limiter")

        def acquire(*args: P.args, **kwargs: P.kwargs) -> Awaitable[object]:
            return self.of(*args, **kwargs).acquire()

        return limited_async(function, acquire)
