"""Every state of the dashboard, played to a real browser: what it says, how it looks, who can use it.

The pictures are kept in build/dashboard, to be looked at by people.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard import states
from tests.dashboard.browser import DESKTOP, PHONE, Watched, browser, watched
from tests.dashboard.player import TOKEN, Player, playing
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.heavy

LOOKS: Final = tuple((theme, size) for theme in ("dark", "light") for size in (DESKTOP, PHONE))
PATIENCE: Final = 20_000


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with playing() as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of one module: what Playwright does to the event loop must end before other tests run."""
    with installed(), browser() as running:
        yield running


@pytest.fixture(scope="module")
def opened(chromium: Browser, player: Player) -> Iterator[Watched]:
    """One page for all tests: states come to it over its socket."""
    with watched(chromium, player.url) as seen:
        yield seen


@pytest.fixture
def seen(opened: Watched, player: Player) -> Iterator[Watched]:
    """The page as it begins, live and without a complaint, and without one at the end."""
    player.play(states.steady)
    opened.page.evaluate("() => { location.hash = ''; sessionStorage.clear() }")
    opened.look("dark", DESKTOP)
    expect(opened.page.get_by_test_id("connection")).to_contain_text("Live", timeout=PATIENCE)
    yield opened
    opened.require_clean()


def said(page: Page, test_id: str, text: str | re.Pattern[str]) -> None:
    expect(page.get_by_test_id(test_id)).to_contain_text(text, timeout=PATIENCE)


def steady(page: Page) -> None:
    said(page, "verdict", "All is well. 659 requests a second, 3.8 % denied")
    said(page, "kpi-requests", "659")
    said(page, "kpi-denied", "25 /s, 17 keys")
    expect(page.get_by_test_id("algorithm")).to_have_attribute("data-algorithm", "sliding_window")
    expect(page.locator("[data-testid=bands] li")).to_have_count(5)
    expect(page.locator("[data-testid=rules] tbody tr")).to_have_count(6)


def bursts(page: Page) -> None:
    expect(page.get_by_test_id("algorithm")).to_have_attribute("data-algorithm", "token_bucket")
    said(page, "reason", "3.3 times the mean")
    expect(page.locator("[data-testid=bands] li").last).to_have_attribute(
        "data-algorithm", "token_bucket"
    )


def abuse(page: Page) -> None:
    expect(page.get_by_test_id("verdict")).to_have_attribute("data-level", "warn")
    said(page, "kpi-denied", "above 50 %")


def degraded(page: Page) -> None:
    banner = page.get_by_role("alert")
    expect(banner).to_contain_text("Redis does not answer, and gw-3 is down")
    expect(banner).to_contain_text("each node gives out a third of every limit")
    said(page, "kpi-requests", "on gw-1")
    said(page, "rules", "a third")
    said(page, "nodes", "1 down")
    said(page, "decider", "the choice cannot change")


def empty(page: Page) -> None:
    said(page, "timeline", "No requests yet.")
    said(page, "timeline", "/check")
    said(page, "kpi-burst", "–")


def simulated(page: Page) -> None:
    expect(page.get_by_test_id("algorithm")).to_have_attribute(
        "data-algorithm", "exponential_backoff"
    )
    said(page, "sim-abuse", "30 a second")


def draining(page: Page) -> None:
    said(page, "verdict", "This node is shutting down.")
    said(page, "nodes", "is ending")


def viewer(page: Page) -> None:
    said(page, "key-answer", "Denied")
    for act in ("reset", "override", "ban"):
        expect(page.get_by_test_id(f"act-{act}")).to_be_disabled()
    expect(page.locator("#panel-inspect")).to_contain_text("needs an operator token")


def inspected(page: Page) -> None:
    said(page, "key-answer", re.compile(r"Denied\s*passes in 0:3\d"))
    expect(page.locator("#panel-inspect")).to_contain_text("5 of 5 used")
    expect(page.locator(".candidates li.now")).to_contain_text("Sliding window decides")
    page.get_by_test_id("act-override").click()
    page.get_by_role("spinbutton", name="Limit").first.fill("60")
    expect(page.get_by_role("button", name="Allow 60 in a minute")).to_be_visible()


def part(page: Page, name: str) -> Locator:
    """A line of what nodes depend on."""
    return page.locator("[data-testid=nodes] dl div").filter(has=page.get_by_text(name, exact=True))


def regions(page: Page) -> None:
    expect(page.get_by_test_id("verdict")).to_have_attribute("data-level", "warn")
    said(page, "verdict", "7 units of limits kept by escrow got lost between regions.")
    expect(part(page, "Region eu")).to_contain_text("asia 0.3 s, us 0.2 s behind")
    expect(part(page, "Rights")).to_contain_text("128 asks, got 2,310, gave 940")
    expect(part(page, "Rights lost")).to_contain_text("7 units, 4 min ago")
    expect(part(page, "Rights lost").locator(".dot.warn")).to_have_count(1)


def regions_cut_off(page: Page) -> None:
    expect(part(page, "Region eu")).to_contain_text("asia cut off")
    expect(part(page, "Region eu").locator(".dot.warn")).to_have_count(1)
    expect(part(page, "Rights").locator(".dot.warn")).to_have_count(0)
    expect(part(page, "Rights lost")).to_have_count(0)


def shared(page: Page) -> None:
    said(page, "key-answer", "7 left")
    expect(page.locator("#panel-inspect")).to_contain_text("This region may admit 7 more")


KEY: Final = f"key={states.DENIED}"
STATES: Final[dict[str, tuple[Callable[[float], states.State], str, Callable[[Page], None]]]] = {
    "steady": (states.steady, "", steady),
    "bursts": (states.bursts, "", bursts),
    "abuse": (states.abuse, "", abuse),
    "degraded": (states.degraded, "", degraded),
    "empty": (states.empty, "", empty),
    "simulated": (states.simulated, "simulate", simulated),
    "draining": (states.draining, "", draining),
    "not-allowed": (states.viewer, KEY, viewer),
    "inspector": (states.steady, KEY, inspected),
    "regions": (states.regions, "", regions),
    "regions-cut-off": (states.regions_cut_off, "", regions_cut_off),
    "shared-key": (states.regions, f"key={states.SHARED}", shared),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_a_state_is_told_looks_right_and_is_open_to_everybody(
    name: str, seen: Watched, player: Player
) -> None:
    """Pictures in four looks, and axe-core, take a second or two."""
    make, address, holds = STATES[name]
    player.play(make)
    seen.page.evaluate("(to) => { location.hash = to }", address)
    holds(seen.page)
    # axe-core takes seconds: each state is shown to it in one of the four looks, the first one in all.
    looked_at = LOOKS if name == "steady" else LOOKS[list(STATES).index(name) % 4 :][:1]
    for theme, size in LOOKS:
        seen.look(theme, size)
        seen.picture(f"{name}-{theme}-{size[0]}")
        assert_no_sideways_scrolling(seen.page)
        if (theme, size) in looked_at:
            seen.require_accessible()


def assert_no_sideways_scrolling(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_nothing_is_below_the_fold_of_a_laptop_and_nothing_beside_a_small_phone(
    seen: Watched, player: Player
) -> None:
    steady(seen.page)
    expect(seen.page.get_by_test_id("nodes")).not_to_contain_text("Rights")
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= DESKTOP[1]
    player.play(states.regions)
    regions(seen.page)
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= DESKTOP[1]
    for width in (360, 600, 760, 950, 1100, 1280):
        seen.look("dark", (width, 800))
        assert_no_sideways_scrolling(seen.page)


@pytest.mark.slow
def test_a_lost_link_is_told_and_comes_back_by_itself_and_gaps_are_no_zeros(
    seen: Watched, player: Player
) -> None:
    """The page must wait for real seconds of silence."""
    page = seen.page
    steady(page)
    player.fall_silent()
    said(page, "connection", "Late")
    after = "(title) => getComputedStyle(title, '::after').content"
    assert "as of" in page.locator("#kpi-requests h2").evaluate(after)
    expect(page.get_by_test_id("verdict")).to_contain_text("Nothing was heard for")
    pictures(seen, "late")
    player.go_away()
    said(page, "connection", "Reconnecting")
    expect(page.get_by_role("alert")).to_contain_text("The link to the service is lost")
    pictures(seen, "disconnected")
    seen.complaints = [
        one for one in seen.complaints if "503" not in one
    ]  # Tickets, refused on purpose.
    player.play(states.steady)
    said(page, "connection", "Live")
    steady(page)
    seen.complaints = [one for one in seen.complaints if "503" not in one]


def pictures(seen: Watched, name: str) -> None:
    for theme, size in LOOKS:
        seen.look(theme, size)
        seen.picture(f"{name}-{theme}-{size[0]}")
    seen.look("dark", DESKTOP)


@pytest.mark.slow
def test_the_page_can_be_held_and_goes_on_collecting(seen: Watched) -> None:
    """It takes seconds to fall behind."""
    page = seen.page
    steady(page)
    page.keyboard.press("p")
    said(page, "connection", re.compile(r"Held\s*at .*, [1-9]\d* s behind"))
    pictures(seen, "paused")
    page.keyboard.press("p")
    said(page, "connection", "Live")


def test_without_a_token_only_the_verdict_and_a_form_are_there(chromium: Browser) -> None:
    with playing(states.locked) as player, watched(chromium, player.url) as seen:
        page = seen.page
        expect(page.get_by_text("This service needs a token.")).to_be_visible()
        said(page, "verdict", "The service is up.")
        pictures(seen, "unauthorised")
        seen.require_accessible()
        page.get_by_role("textbox", name="Token").fill("wrong")
        page.get_by_role("button", name="Look").click()
        said(page, "token-form", "That token does not hold.")
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.get_by_role("button", name="Look").click()
        said(page, "connection", "Live")
        expect(page.get_by_text("This service needs a token.")).to_be_hidden()
        kept = page.evaluate(
            "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href]"
        )
        assert not [one for one in kept if TOKEN in one]
        assert all("401" in one for one in seen.complaints)
        assert seen.strangers == []


def test_the_frame_is_there_before_the_first_figures(chromium: Browser) -> None:
    with playing(away=True) as player, watched(chromium, player.url) as seen:
        said(seen.page, "kpi-requests", "–")
        said(seen.page, "connection", "Reconnecting")
        said(seen.page, "verdict", "The service does not answer.")
        pictures(seen, "loading")


def test_without_script_there_is_a_way_to_what_runs(chromium: Browser, player: Player) -> None:
    with watched(chromium, player.url, script=False) as seen:
        link = seen.page.locator("noscript a")
        expect(link).to_have_attribute("href", "/about")
        pictures_without_script(seen)
        seen.require_clean()


def pictures_without_script(seen: Watched) -> None:
    for theme, size in LOOKS:
        seen.page.emulate_media(color_scheme="light" if theme == "light" else "dark")
        seen.page.set_viewport_size({"width": size[0], "height": size[1]})
        seen.picture(f"no-script-{theme}-{size[0]}")


def test_hostile_keys_are_text(seen: Watched) -> None:
    page = seen.page
    steady(page)
    row = page.locator(f"[data-testid=blocked-row][data-key='{states.HOSTILE}']")
    expect(row).to_contain_text(states.HOSTILE)
    expect(page.locator("main img")).to_have_count(0)
    expect(page.locator(".most")).to_contain_text(r"user:310\u202e")
    assert "\u202e" not in page.locator(".most").inner_text()


def test_everything_can_be_done_with_the_keyboard(seen: Watched) -> None:
    page = seen.page
    steady(page)
    page.keyboard.press("/")
    expect(page.get_by_label("Find a key").first).to_be_focused()
    page.keyboard.type(states.DENIED)  # Here a "1" and a "5" are text.
    page.keyboard.press("Enter")
    said(page, "key-answer", "Denied")
    assert page.evaluate("decodeURIComponent(location.hash)") == f"#key={states.DENIED}"
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Close").click()
    expect(page.get_by_test_id("tab-keys")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("i")
    expect(page.locator("#recent")).to_contain_text(states.DENIED)
    expect(page.get_by_test_id("key-answer")).to_be_hidden()
    page.keyboard.press("s")
    expect(page.get_by_test_id("tab-simulate")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("k")
    page.get_by_test_id("tab-keys").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_test_id("tab-inspect")).to_be_focused()
    page.keyboard.press("1")
    expect(page.get_by_role("button", name="1 min", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_test_id("timeline").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#tip")).to_contain_text("decided by")
    expect(page.get_by_role("status").and_(page.locator("#announcer"))).to_contain_text("allowed")
    page.keyboard.press("0")
    page.keyboard.press("t")
    expect(page.get_by_role("dialog")).to_contain_text("Busiest second")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("halves the limit")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_switch_pulses_and_is_told_to_who_listens(seen: Watched, player: Player) -> None:
    page = seen.page
    steady(page)
    player.play(states.bursts)
    bursts(page)
    expect(page.get_by_test_id("algorithm")).to_have_class(re.compile("pulse"))
    expect(page.locator("#announcer")).to_contain_text("Token bucket decides now", timeout=PATIENCE)


OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll("#flags p")].map((one) => one.getBoundingClientRect());
  const plot = document.getElementById("timeline").getBoundingClientRect();
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const inside = (a) => a.left >= plot.left - 1 && a.right <= plot.right + 1 && a.bottom <= plot.bottom + 8;
  return {
    flags: boxes.length,
    overlapping: boxes.flatMap((a, at) => boxes.slice(at + 1).filter((b) => !apart(a, b))).length,
    outside: boxes.filter((a) => !inside(a)).length,
  };
}"""


def test_labels_of_switches_close_together_do_not_overlap(seen: Watched, player: Player) -> None:
    page = seen.page
    player.play(states.switching)
    page.keyboard.press("1")
    expect(page.locator("#flags p")).to_have_count(3, timeout=PATIENCE)
    for theme, size in LOOKS:
        seen.look(theme, size)
        page.wait_for_function("() => document.querySelectorAll('#flags p').length === 3")
        seen.picture(f"switching-{theme}-{size[0]}")
        assert page.evaluate(OVERLAPS) == {"flags": 3, "overlapping": 0, "outside": 0}, size
    page.keyboard.press("0")


def test_all_rules_can_be_sorted_and_filtered(seen: Watched) -> None:
    page = seen.page
    steady(page)
    page.get_by_role("button", name="All 23 rules").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tbody tr")).to_have_count(23)
    dialog.get_by_role("button", name="Rule", exact=True).click()
    expect(dialog.locator("tbody tr").first).to_contain_text("checkout-v2")
    dialog.get_by_label("Filter rules").fill("login")
    expect(dialog.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")


CHART: Final[dict[str, tuple[str, Any]]] = {
    "steps are 1, 2 or 5 times a power of ten": (
        "[module.niceStep(100, 5), module.niceStep(7, 4), module.niceStep(2700, 5), module.niceStep(0.9, 4)]",
        [20, 2, 1000, 0.5],
    ),
    "the scale has room for both halves and at most six labels": (
        """[[2700, 1000], [0, 0], [5, 95], [1e6, 0]].map(([up, down]) => {
          const scale = module.scaleFor(up, down, 5);
          return scale.top >= up && scale.bottom >= down && scale.labels.length <= 6 && scale.labels.includes(0);
        })""",
        [True] * 4,
    ),
    "labels are whole minutes on a long range and seconds on a short one": (
        "[module.timeLabels(1000, 1900, 700).step, module.timeLabels(1000, 1060, 700).step, module.timeLabels(1000, 1900, 300).step]",
        [120, 10, 300],
    ),
    "a spike survives thinning": ("module.thinned([1, 1, 1, 90, 1, 1, 1, 1], 4)", [1, 90, 1, 1]),
    "what is not known is no run of zeros": (
        "module.runs(6, (at) => [1, 0, NaN, NaN, 2, NaN].map(Number.isFinite)[at])",
        [[0, 2], [4, 5]],
    ),
    "labels of the axis are short": (
        "[0, 500, 1500, 2e6, -1000].map(module.axisLabel)",
        ["0", "500", "1.5k", "2M", "1k"],
    ),
}


@pytest.mark.parametrize("claim", CHART)
def test_the_chart(claim: str, seen: Watched) -> None:
    expression, expected = CHART[claim]
    assert in_module(seen.page, "chart.js", expression) == expected


def test_history_keeps_gaps_takes_corrections_and_knows_who_decided(seen: Watched) -> None:
    found = in_module(
        seen.page,
        "history.js",
        """(() => {
          const kept = new module.History();
          const switches = [{at: 90, from: null, to: "sliding_window", epoch: 1}, {at: 103, from: "sliding_window", to: "token_bucket", epoch: 2}];
          kept.begin({started: 50, switches, history: {from: 100, allowed: [1, null, 3], denied: [0, null, 1], p99_us: [], burst_ratio: []}});
          kept.add({at: 104, seen: "cluster", second: {allowed: 5, denied: 0}, seconds: {from: 102, allowed: [4, null, 5], denied: [1, null, 0]}, switch: null});
          const shown = kept.values(104, 6, "allowed").map((one) => (Number.isNaN(one) ? "?" : one));
          return [shown, kept.periods(100, 105).map((one) => [one.algorithm, one.from, one.to]), kept.changes(0)];
        })()""",
    )
    assert found == [
        ["?", 1, "?", 4, "?", 5],
        [["sliding_window", 100, 103], ["token_bucket", 103, 105]],
        1,
    ]


def in_module(page: Page, name: str, expression: str) -> Any:
    """What an expression says, in which `module` is a module of the page."""
    return page.evaluate(
        f"""async (name) => {{
          const main = document.querySelector("script[type=module]").src;
          const module = await import(main.replace("main.js", name));
          return {expression};
        }}""",
        name,
    )
