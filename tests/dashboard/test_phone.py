"""What a phone has no room for: nothing is cut off, and nothing covers what one came to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard import states
from tests.dashboard.browser import DESKTOP, PATIENCE, PHONE, Watched, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboard.player import Player

pytestmark = pytest.mark.heavy

CUT: Final = """() => [...document.querySelectorAll(".figures .sub")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""
COVERED: Final = """() => {
  const area = (node) => node.clientWidth * node.clientHeight;
  const flags = [...document.querySelectorAll("#flags p")].map(area);
  return flags.reduce((sum, one) => sum + one, 0) / area(document.getElementById("timeline"));
}"""
"""The share of the plot that is under the flags of switches."""


@pytest.fixture
def phone(seen: Watched) -> Iterator[Watched]:
    """The page on a phone."""
    seen.look("dark", PHONE)
    yield seen
    seen.look("dark", DESKTOP)


def test_no_words_under_the_figures_are_cut(phone: Watched) -> None:
    said(phone.page, "kpi-requests", "57.5 million in all")
    assert phone.page.evaluate(CUT) == []


def test_the_flags_of_three_switches_leave_most_of_the_plot_in_sight(
    phone: Watched, player: Player
) -> None:
    player.play(states.switching)
    phone.page.keyboard.press("1")
    expect(phone.page.locator("#flags p")).to_have_count(3, timeout=PATIENCE)
    phone.picture("switching-phone")
    assert phone.page.evaluate(COVERED) < 0.2
    phone.page.keyboard.press("0")


@pytest.mark.slow
def test_nodes_are_not_shown_as_well_while_nothing_is_heard_of_them(
    seen: Watched, player: Player
) -> None:
    """The page must wait for real seconds of silence."""
    page = seen.page
    said(page, "nodes", "3 of 3 up")
    player.fall_silent()
    said(page, "connection", "Late")
    ground = "(dots) => dots.map((one) => getComputedStyle(one).backgroundColor)"
    seen.picture("late-nodes")
    found = page.locator("[data-testid=nodes] .dot").evaluate_all(ground)
    assert set(found) == {"rgba(0, 0, 0, 0)"}
