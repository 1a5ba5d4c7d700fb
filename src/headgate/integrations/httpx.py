"""Budgets for httpx: a transport that waits for room in the budget, and follows the API's rate limit headers.

client = httpx.Client(transport=RateLimitTransport(rate="4/second"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from ..aio import AsyncLimiter
from ..limiter import Limiter
from ._client_budgets import AsyncBudgets, Budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..rate import RateLike


class RateLimitTransport(httpx.BaseTransport):
    """A transport for `httpx.Client` that keeps to budgets. `transport` sends the requests.

    `rate` is the budget of each host, `rates` those of single hosts; calls to a host that has neither are not counted.
    `key` is called with the request, and says what a call is counted under in the place of its host, such as an
    account. `limiter` is a `Limiter` or the URL of an engine; processes on one engine share their budgets. A call waits
    for its turn, at most `max_wait` seconds, and then raises `RateLimitExceeded`. Where the other side says that
    nothing is left (`Retry-After`, `RateLimit`, `X-RateLimit-…`), all processes on the engine wait until the time it
    gives.
    """

    def __init__(
        self,
        rate: RateLike | None = None,
        *,
        rates: Mapping[str, RateLike] | None = None,
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: Limiter | str | None = None,
        max_wait: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._budgets = Budgets(
            Limiter, rate, rates=rates, key=key, limiter=limiter, max_wait=max_wait
        )
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request when it is its turn."""
        call = self._budgets.call(request, request.url.host)
        self._budgets.wait(call)
        response = self._transport.handle_request(request)
        self._budgets.pause_if_asked(call, response.status_code, response.headers)
        return response

    def close(self) -> None:
        """Close the transport inside, and the limiter if it was opened here."""
        self._transport.close()
        if self._budgets.owned:
            self._budgets.limiter.close()


class AsyncRateLimitTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`, with an `AsyncLimiter`."""

    def __init__(
        self,
        rate: RateLike | None = None,
        *,
        rates: Mapping[str, RateLike] | None = None,
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: AsyncLimiter | str | None = None,
        max_wait: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._budgets = AsyncBudgets(
            AsyncLimiter, rate, rates=rates, key=key, limiter=limiter, max_wait=max_wait
        )
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request when it is its turn."""
        call = self._budgets.call(request, request.url.host)
        await self._budgets.wait(call)
        response = await self._transport.handle_async_request(request)
        await self._budgets.pause_if_asked(call, response.status_code, response.headers)
        return response

    async def aclose(self) -> None:
        """Close the transport inside, and the limiter if it was opened here."""
        await self._transport.aclose()
        if self._budgets.owned:
            await self._budgets.limiter.aclose()
