"""Budgets for aiohttp: client middleware that waits for room in the budget, and follows the API's rate limit headers.

async with aiohttp.ClientSession(middlewares=[RateLimitClientMiddleware(rate="4/second")]) as session: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..aio import AsyncLimiter
from ._client_budgets import AsyncBudgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

    from ..rate import RateLike


class RateLimitClientMiddleware:
    """Client middleware for `aiohttp.ClientSession` that keeps to budgets.

    `rate` is the budget of each host, `rates` those of single hosts; calls to a host that has neither are not counted.
    `key` is called with the request, and says what a call is counted under in the place of its host, such as an
    account. `limiter` is an `AsyncLimiter` or the URL of an engine; processes on one engine share their budgets. A call
    waits for its turn, at most `max_wait` seconds, and then raises `RateLimitExceeded`. Where the other side says that
    nothing is left (`Retry-After`, `RateLimit`, `X-RateLimit-…`), all processes on the engine wait until the time it
    gives.
    """

    def __init__(
        self,
        rate: RateLike | None = None,
        *,
        rates: Mapping[str, RateLike] | None = None,
        key: Callable[[ClientRequest], str | None] | None = None,
        limiter: AsyncLimiter | str | None = None,
        max_wait: float | None = None,
    ) -> None:
        self._budgets = AsyncBudgets(
            AsyncLimiter, rate, rates=rates, key=key, limiter=limiter, max_wait=max_wait
        )

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request when it is its turn."""
        call = self._budgets.call(request, request.url.host or "")
        await self._budgets.wait(call)
        response = await handler(request)
        await self._budgets.pause_if_asked(call, response.status, response.headers)
        return response

    async def aclose(self) -> None:
        """Close the limiter, if it was opened here. aiohttp does not close its middleware."""
        if self._budgets.owned:
            await self._budgets.limiter.aclose()
