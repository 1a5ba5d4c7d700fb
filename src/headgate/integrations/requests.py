"""Budgets for requests: an adapter that waits for room in the budget, and follows the API's rate limit headers.

session = requests.Session()
session.mount("https://", RateLimitAdapter(rate="4/second"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter

from ..limiter import Limiter
from ._client_budgets import Budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from requests import PreparedRequest, Response

    from ..rate import RateLike


class RateLimitAdapter(HTTPAdapter):
    """An adapter for `requests.Session.mount` that keeps to budgets; other options are those of `HTTPAdapter`.

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
        key: Callable[[PreparedRequest], str | None] | None = None,
        limiter: Limiter | str | None = None,
        max_wait: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._budgets = Budgets(
            Limiter, rate, rates=rates, key=key, limiter=limiter, max_wait=max_wait
        )

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send a request when it is its turn."""
        call = self._budgets.call(request, urlsplit(request.url or "").hostname or "")
        self._budgets.wait(call)
        response = super().send(request, *args, **kwargs)
        self._budgets.pause_if_asked(call, response.status_code, response.headers)
        return response

    def close(self) -> None:
        """Close the connections, and the limiter if it was opened here."""
        super().close()
        if self._budgets.owned:
            self._budgets.limiter.close()
