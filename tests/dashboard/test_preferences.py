"""What people ask of their browser: no motion, and colours of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard import states
from tests.dashboard.browser import DESKTOP, PHONE, Watched, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboard.player import Player

pytestmark = pytest.mark.heavy

COLOURS: Final = """() => {
  const found = {};
  for (const canvas of document.querySelectorAll("canvas")) {
    if (!canvas.clientWidth) continue;
    const {width, height} = canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const {data} = copy.getImageData(0, 0, width, height);
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] < 250) continue;
      const colour = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
      found[colour] = (found[colour] ?? 0) + 1;
    }
  }
  return found;
}"""
"""How many opaque pixels of each colour the charts have."""
BORDER: Final = "(node) => getComputedStyle(node).borderBottomColor"
MARKED: Final = (
    "[data-range][aria-pressed=true]",
    ".tabs [aria-selected=true]",
    ".choice.now",
    ".dot",
    ".gauge",
    ".bands li",
)
UNMARKED: Final = (".tabs [aria-selected=false]", ".choice:not(.now)")


@pytest.fixture
def still(seen: Watched) -> Iterator[Watched]:
    """The page of somebody who wants no motion."""
    seen.page.emulate_media(reduced_motion="reduce")
    yield seen
    seen.page.emulate_media(reduced_motion="no-preference")


def test_a_switch_has_a_ring_that_does_not_move_for_those_who_want_no_motion(
    still: Watched, player: Player
) -> None:
    player.play(states.bursts)
    badge = still.page.get_by_test_id("algorithm")
    expect(badge).to_have_class(re.compile("pulse"))
    shadow = badge.evaluate("(node) => getComputedStyle(node).boxShadow")
    assert shadow.endswith("0px 0px 0px 3px"), shadow
    moving = "document.getAnimations().filter((one) => one.playState === 'running').length"
    assert still.page.evaluate(moving) == 0


def test_a_switch_pulses_otherwise_and_nothing_else_moves(seen: Watched, player: Player) -> None:
    player.play(states.bursts)
    badge = seen.page.get_by_test_id("algorithm")
    expect(badge).to_have_class(re.compile("pulse"))
    moving = "document.getAnimations().map((one) => one.effect.target.id)"
    assert seen.page.evaluate(moving) == ["badge"]


@pytest.fixture
def forced(seen: Watched) -> Iterator[Watched]:
    """The page of somebody whose system chooses all colours."""
    seen.page.emulate_media(forced_colors="active")
    yield seen
    seen.page.emulate_media(forced_colors="none")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_forced_colours_leave_charts_and_marks_in_sight(scheme: str, forced: Watched) -> None:
    """The charts of rules are drawn with the next tables, and the pictures take their time."""
    page = forced.page
    said(page, "verdict", "All is well.")
    page.keyboard.press("p")
    page.keyboard.press("p")  # Drawn anew.
    for size in (DESKTOP, PHONE):
        forced.look(scheme, size)
        forced.picture(f"forced-colors-{scheme}-{size[0]}")
    forced.look(scheme, DESKTOP)
    forced.require_accessible()
    text, ground = page.evaluate(
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    page.wait_for_function(f"({COLOURS})()['{text}'] > 1000")
    assert set(page.evaluate(COLOURS)) == {text}
    for marked in MARKED:
        assert page.locator(marked).first.evaluate(BORDER) == text, marked
    for unmarked in UNMARKED:
        assert page.locator(unmarked).first.evaluate(BORDER) == ground, unmarked
    mark = "(node) => getComputedStyle(node, '::after').backgroundColor"
    assert page.locator(".gauge").first.evaluate(mark) == text
