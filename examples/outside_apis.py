"""Thin wrappers that stay within the limits of third-party APIs, for all callers.

Each API has one key, and everything that calls it shares that budget: here 4 calls a second for IGDB, 1 a
second for MusicBrainz, 40 in 10 seconds for TMDB and 180 a minute for Spotify. `sliding_log` never passes
more than that in any window. A manual clock makes the waiting instant; leave it out in a real program.

Prints:

    igdb: 9 calls took 2 s
    musicbrainz: 4 calls took 3 s
    tmdb: 100 calls took 20 s
    spotify: 181 calls took 60 s
"""

from collections.abc import Callable

from headgate import Limiter
from headgate.testing import ManualClock

clock = ManualClock()
limiter = Limiter(clock=clock)


class Api:
    """One third-party API: every call waits for room in the budget."""

    def __init__(self, name: str, rate: str, send: Callable[[str], str]) -> None:
        self.name = name
        self._send = send
        self._limit = limiter.limit(f"api:{name}", rate)

    def get(self, path: str) -> str:
        """Call the API, not too often."""
        with self._limit:
            return self._send(f"https://{self.name}.example/{path}")


def send(url: str) -> str:
    """Stand in for an HTTP client."""
    return f"GET {url}"


igdb = Api("igdb", "4/second", send)
musicbrainz = Api("musicbrainz", "1/second", send)
tmdb = Api("tmdb", "40/10 seconds", send)
spotify = Api("spotify", "180/minute", send)

for api, calls in ((igdb, 9), (musicbrainz, 4), (tmdb, 100), (spotify, 181)):
    before_us = clock.now_us()
    for number in range(calls):
        api.get(f"item/{number}")
    print(f"{api.name}: {calls} calls took {(clock.now_us() - before_us) // 1_000_000} s")
