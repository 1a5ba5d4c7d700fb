"""Thin clients of third-party APIs that stay within their limits, however many callers there are.

Every process on one engine shares the budgets. `speed` makes time pass faster, for a test.
"""

import httpx

from headgate import Charge, Limiter
from headgate.integrations.httpx import RateLimitTransport

RATES = {
    "igdb": (4, 1),
    "musicbrainz": (1, 1),
    "tmdb": (40, 10),
    "spotify": (180, 60),
}
"""By API: how many calls it takes in how many seconds."""


def rate_of(limit: int, seconds: float, speed: float = 1.0) -> str:
    """A rate in words."""
    return f"{limit} per {round(seconds / speed * 1_000)} ms"


class Api:
    """A client that waits for its turn, and pauses when the API says so."""

    def __init__(self, name: str, url: str, engine: str, speed: float = 1.0) -> None:
        limit, seconds = RATES[name]
        transport = RateLimitTransport(
            rate_of(limit, seconds, speed), key=lambda _: name, limiter=engine
        )
        self._client = httpx.Client(base_url=url, transport=transport, timeout=30)

    def get(self, path: str) -> int:
        """Call the API; returns the status of the answer."""
        return self._client.get(path).status_code


class LanguageModel:
    """An API with two limits: requests and tokens a minute. Both are taken in one step, or none."""

    REQUESTS, TOKENS, SECONDS = 60, 30_000, 60

    def __init__(self, url: str, engine: str, speed: float = 1.0) -> None:
        self._client = httpx.Client(base_url=url, timeout=30)
        self._limiter = Limiter(engine)
        self._requests = rate_of(self.REQUESTS, self.SECONDS, speed)
        self._tokens = rate_of(self.TOKENS, self.SECONDS, speed)

    def complete(self, prompt: str, estimate: int) -> int:
        """Ask the model. The estimate is charged before, and what it really took after."""
        charges = [
            Charge("llm:requests", self._requests, algorithm="sliding_log"),
            Charge("llm:tokens", self._tokens, cost=estimate, algorithm="sliding_log"),
        ]
        with self._limiter.reserve(charges, timeout=None) as reservation:
            answer = self._client.post("/complete", json={"prompt": prompt, "tokens": estimate})
            reservation.settle(1, answer.json().get("used", estimate))
        return answer.status_code
