"""The guarantees of a service with its settings: the rows of the promise table that apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms import ALGORITHMS
from ..regions.promises import promise_of

WORDS: Final = {
    "fallback": "each node admits its share of a limit, together at most the limit, and charges the store later",
    "open": "requests pass uncounted",
    "closed": "requests are denied",
    "raise": "checks are answered with 503",
}

if TYPE_CHECKING:
    from .settings import Settings


class Promise(NamedTuple):
    """One guarantee: its subject, and its text."""

    about: str
    text: str


def promises(settings: Settings) -> list[Promise]:
    """The guarantees under these settings."""
    return [*_counting(settings), *_regions(settings), *_failing(settings), _draining(settings)]


def _counting(settings: Settings) -> list[Promise]:
    engine = settings.describe_engine()
    found = [
        Promise("counting", engine.promise),
        _default(settings),
        Promise(*engine.when_lost),
    ]
    if engine.deny_cache:
        found.append(
            Promise(
                "deny cache",
                "another node's reset takes effect within 1 s; this never admits too much",
            )
        )
    return found


def _regions(settings: Settings) -> list[Promise]:
    """The guarantees for limits shared by regions."""
    found = settings.read_regions()
    if found is None:
        return []
    modes = ("split", "merge") if found.urls else ("split",)
    return [Promise(f"across regions, {mode}", promise_of(mode, found.regions)) for mode in modes]


def _default(settings: Settings) -> Promise:
    """How checks that name no algorithm are counted."""
    name = settings.default_algorithm
    return Promise("by default", f"{name}: {ALGORITHMS[name].guarantee}")


def _failing(settings: Settings) -> list[Promise]:
    if not settings.shared_engine:
        return []
    return [
        Promise(
            "store down",
            f"every answer comes within its deadline, by on_error ({settings.on_error} unless a rule says "
            f"otherwise): {WORDS[settings.on_error]}; it recovers automatically",
        )
    ]


def _draining(settings: Settings) -> Promise:
    return Promise(
        "SIGTERM",
        f"no request fails: requests in flight get up to {settings.drain_timeout:g} s; a second SIGTERM stops it",
    )
