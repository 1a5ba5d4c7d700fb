"""A browser, and one page to which states are played."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dashboard import states
from tests.dashboard.browser import DESKTOP, Watched, browser, said, watched
from tests.dashboard.player import Player, playing
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of one module: what Playwright does to the event loop must end before other tests run."""
    with installed(), browser() as running:
        yield running


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with playing() as running:
        yield running


@pytest.fixture(scope="module")
def opened(chromium: Browser, player: Player) -> Iterator[Watched]:
    """One page for all tests: states come to it over its socket."""
    with watched(chromium, player.url) as seen:
        yield seen


@pytest.fixture
def seen(opened: Watched, player: Player) -> Iterator[Watched]:
    """The page as it begins, live and without a complaint, and without one at the end."""
    opened.complaints.clear()  # Of a test that has failed.
    player.play(states.steady)
    opened.page.evaluate("() => { location.hash = ''; sessionStorage.clear() }")
    opened.page.keyboard.press("0")  # The timeline begins with its own range.
    opened.look("dark", DESKTOP)
    said(opened.page, "connection", "Live")
    yield opened
    opened.require_clean()
