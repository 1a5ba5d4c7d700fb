"""Every state of the dashboard, played to a real browser: what it says, how it looks, who can use it.

The pictures are kept in build/dashboard, to be looked at by people.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard import states
from tests.dashboard.browser import DESKTOP, LOOKS, PATIENCE, Watched, said, timeline, watched
from tests.dashboard.player import TOKEN, Player, playing

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.heavy


def steady(page: Page) -> None:
    said(page, "verdict", "All is well. 659 requests a second, 3.8% denied")
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
    said(page, "kpi-denied", "above 50%")


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
    expect(page.locator("#panel-inspect")).to_contain_text("need an operator token")


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


def etcd(page: Page) -> None:
    expect(part(page, "etcd")).to_contain_text("commits in 4.21 ms, 14 unconfirmed")
    said(page, "nodes", "this node, 22 shards")
    said(page, "nodes", "10.0.4.12:8080, 21 shards")
    expect(page.locator("[data-testid=nodes] .dot:is(.warn, .bad)")).to_have_count(0)


def etcd_after_a_crash(page: Page) -> None:
    expect(part(page, "etcd")).to_contain_text("21 shards without an owner")
    expect(part(page, "etcd").locator(".dot.warn")).to_have_count(1)
    said(page, "nodes", "1 down")


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
    "etcd": (states.on_etcd, "", etcd),
    "etcd-after-a-crash": (states.on_etcd_after_a_crash, "", etcd_after_a_crash),
    "shared-key": (states.regions, f"key={states.SHARED}", shared),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_a_state_is_described_renders_and_is_accessible(
    name: str, seen: Watched, player: Player
) -> None:
    """Pictures in four looks, and axe-core, take a second or two."""
    make, address, holds = STATES[name]
    player.play(make)
    seen.page.evaluate("(to) => { location.hash = to }", address)
    holds(seen.page)
    seen.require_good_looks(name)


def test_the_page_fits_a_laptop_screen_and_the_width_of_a_small_phone(
    seen: Watched, player: Player
) -> None:
    steady(seen.page)
    expect(seen.page.get_by_test_id("nodes")).not_to_contain_text("Rights")
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= DESKTOP[1]
    for make, holds in (
        (states.regions, regions),
        (states.on_etcd_after_a_crash, etcd_after_a_crash),
    ):
        player.play(make)
        holds(seen.page)
        assert seen.page.evaluate("document.documentElement.scrollHeight") <= DESKTOP[1]
    for width in (360, 600, 760, 950, 1100, 1280):
        seen.look("dark", (width, 800))
        seen.require_no_sideways_scrolling()


@pytest.mark.slow
def test_a_lost_connection_is_shown_and_recovers_and_the_gap_is_hatched(
    seen: Watched, player: Player
) -> None:
    """The page must wait for real seconds of silence."""
    page = seen.page
    steady(page)
    page.keyboard.press("1")
    player.fall_silent()
    said(page, "connection", "Late")
    after = "(title) => getComputedStyle(title, '::after').content"
    assert "as of" in page.locator("#kpi-requests h2").evaluate(after)
    expect(page.get_by_test_id("verdict")).to_contain_text("Nothing was heard for")
    seen.require_good_looks("late")
    player.go_away()
    said(page, "connection", "Reconnecting")
    expect(page.get_by_role("alert")).to_contain_text("The connection to the service is lost")
    seen.require_good_looks("disconnected")
    drawn = timeline(seen)
    heard = seen.in_module("state.js", "module.state.tick.at")
    assert {one for second, one in drawn.items() if second <= heard} == {"bars"}
    assert {one for second, one in drawn.items() if second > heard} == {"hatch"}
    page.keyboard.press("0")
    seen.complaints = [
        one for one in seen.complaints if "503" not in one
    ]  # Tickets, refused on purpose.
    player.play(states.steady)
    said(page, "connection", "Live")
    steady(page)
    seen.complaints = [one for one in seen.complaints if "503" not in one]


def test_a_service_that_hangs_is_tried_again(chromium: Browser) -> None:
    """It takes connections and says nothing. The page's clock is moved, so nobody waits."""
    with playing() as player, watched(chromium, player.url) as seen:
        page = seen.page
        steady(page)
        page.clock.install()
        page.reload()
        said(page, "connection", "Live")
        player.fall_silent()
        page.clock.fast_forward(14_000)
        said(page, "connection", "Reconnecting, try 1")
        for tried in (2, 3):
            page.clock.fast_forward(2_000)
            page.wait_for_timeout(100)  # The socket opens in real time.
            page.clock.fast_forward(11_000)
            said(page, "connection", f"Reconnecting, try {tried}")
        player.play(states.steady)
        said(page, "connection", "Live")
        seen.require_clean()


@pytest.mark.parametrize("key, shape", [("1", "bars"), ("5", "areas")])
def test_seconds_of_which_nothing_is_known_are_hatched_and_no_zeros(
    key: str, shape: str, seen: Watched, player: Player
) -> None:
    page = seen.page
    player.play(states.interrupted)
    page.keyboard.press(key)
    expect(page.locator("[data-range][aria-pressed=true]")).to_have_text(f"{key} min")
    player.fall_silent()  # So that no second ends meanwhile.
    seen.picture(f"interrupted-{shape}")
    drawn = timeline(seen)
    assert len(drawn) == 60 * int(key)
    began = seen.in_module("state.js", "module.state.hello.history.from")
    gap = range(began + 900 - states.GAP[1], began + 900 - states.GAP[0])
    assert {drawn[second] for second in gap} == {"hatch"}
    near = range(gap.start - 1, gap.stop + 1)  # An area begins and ends within a second.
    known = [one for second, one in drawn.items() if second not in near]
    assert set(known[1:-1]) == {"bars"}
    page.keyboard.press("0")


@pytest.mark.slow
def test_a_paused_page_keeps_collecting(seen: Watched) -> None:
    """It takes seconds to fall behind."""
    page = seen.page
    steady(page)
    page.keyboard.press("p")
    said(page, "connection", re.compile(r"Held\s*at .*, [1-9]\d* s behind"))
    seen.require_good_looks("paused")
    page.keyboard.press("p")
    said(page, "connection", "Live")


def test_without_a_token_only_the_verdict_and_a_form_are_shown(chromium: Browser) -> None:
    with playing(states.locked) as player, watched(chromium, player.url) as seen:
        page = seen.page
        expect(page.get_by_text("This service needs a token.")).to_be_visible()
        said(page, "verdict", "The service is up.")
        seen.require_good_looks("unauthorised")
        page.get_by_role("textbox", name="Token").fill("wrong")
        page.get_by_role("button", name="Look").click()
        said(page, "token-form", "That token is not valid.")
        player.patience = 0
        page.get_by_role("textbox", name="Token").fill("wrong again")
        page.get_by_role("button", name="Look").click()
        said(page, "token-form", "Too many wrong tokens; wait 42 s.")
        seen.require_accessible()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.get_by_role("button", name="Look").click()
        said(page, "connection", "Live")
        expect(page.get_by_text("This service needs a token.")).to_be_hidden()
        kept = page.evaluate(
            "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href]"
        )
        assert not [one for one in kept if TOKEN in one]
        assert all(re.search("401|429", one) for one in seen.complaints), seen.complaints
        assert seen.strangers == []


def test_a_revoked_token_ends_what_is_shown(chromium: Browser) -> None:
    with playing(states.steady) as player, watched(chromium, player.url) as seen:
        steady(seen.page)
        player.play(states.locked)
        expect(seen.page.get_by_text("This service needs a token.")).to_be_visible()
        said(seen.page, "connection", "Needs a token")
        expect(seen.page.get_by_test_id("kpi-requests")).to_be_hidden()
        expect(seen.page.get_by_test_id("timeline")).to_be_hidden()


def test_the_layout_is_rendered_before_the_first_figures(chromium: Browser) -> None:
    with playing(away=True) as player, watched(chromium, player.url) as seen:
        said(seen.page, "kpi-requests", "–")
        said(seen.page, "connection", "Reconnecting")
        said(seen.page, "verdict", "The service does not answer.")
        seen.require_good_looks("loading")


def test_without_scripts_the_page_links_to_the_service_description(
    chromium: Browser, player: Player
) -> None:
    with watched(chromium, player.url, script=False) as seen:
        link = seen.page.locator("noscript a")
        expect(link).to_have_attribute("href", "/about")
        for theme, size in LOOKS:  # Without script axe-core cannot look.
            seen.page.emulate_media(color_scheme="light" if theme == "light" else "dark")
            seen.page.set_viewport_size({"width": size[0], "height": size[1]})
            seen.picture(f"no-script-{theme}-{size[0]}")
        seen.require_clean()


def test_hostile_keys_are_rendered_as_text(seen: Watched) -> None:
    page = seen.page
    steady(page)
    row = page.locator(f"[data-testid=blocked-row][data-key='{states.HOSTILE}']")
    expect(row).to_contain_text(states.HOSTILE)
    expect(page.locator("main img")).to_have_count(0)
    expect(page.locator(".most")).to_contain_text(r"user:310\u202e")
    assert "\u202e" not in page.locator(".most").inner_text()


def test_every_control_works_with_the_keyboard(seen: Watched) -> None:
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


def test_a_switch_pulses_and_is_announced_to_screen_readers(seen: Watched, player: Player) -> None:
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
        seen.require_accessible()
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
        "[[1900, 700], [1060, 700], [1900, 300]].map(([to, width]) => module.timeLabels(1000, to, width).step)",
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
def test_the_chart_functions_return_the_expected_values(claim: str, seen: Watched) -> None:
    expression, expected = CHART[claim]
    assert seen.in_module("chart.js", expression) == expected


def test_history_keeps_gaps_accepts_corrections_and_records_who_decided(seen: Watched) -> None:
    found = seen.in_module(
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
