"""The traffic simulator of a real service: what one asks for is sent, and it stops by itself."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard.browser import Watched, watched
from tests.servers.process import HOST
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

PATIENCE: Final = 30_000
AS_IF_HIDDEN: Final = """() => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A browser without a window shows every tab; so the tab says of itself that it is hidden."""


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service() as started:
        yield started


@pytest.fixture
def seen(chromium: Browser, running: Service) -> Iterator[Watched]:
    with watched(chromium, f"http://{HOST}:{running.port}/#simulate") as page:
        expect(page.page.get_by_test_id("connection")).to_contain_text("Live", timeout=PATIENCE)
        yield page
        page.require_clean()


def log_says(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.get_by_test_id("sim-log")).to_contain_text(text, timeout=PATIENCE)


def start_abuse(page: Page) -> None:
    page.get_by_test_id("sim-abuse").click()
    expect(page.locator(".run .totals")).not_to_contain_text("Sent0", timeout=PATIENCE)


def checks(running: Service) -> float:
    """How many checks the service has decided."""
    status, _, metrics = running.ask("GET", "/metrics")
    assert status == 200, metrics
    lines = [line for line in metrics.splitlines() if line.startswith("headgate_checks_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def require_quiet(running: Service) -> None:
    """No more checks come."""
    deadline = time.monotonic() + 10
    before = checks(running)
    while True:
        time.sleep(0.6)  # A simulation would send 18 more; there is no clock to move.
        if (now := checks(running)) == before:
            break
        assert time.monotonic() < deadline, f"checks go on: {before}, {now}"
        before = now
    assert before > 0


def require_ready_for_another(page: Page) -> None:
    expect(page.get_by_test_id("sim-stop")).to_have_count(0)
    for shape in ("steady", "burst", "abuse", "own"):
        expect(page.get_by_test_id(f"sim-{shape}")).to_be_enabled()


def test_ones_own_traffic_is_sent_as_asked_and_ends_by_itself(
    seen: Watched, running: Service
) -> None:
    """It takes two seconds."""
    page = seen.page
    page.get_by_test_id("sim-own").click()
    asked = {
        "requests/s": 20,
        "length in s": 2,
        "keys": 4,
        "cost": 3,
        "limit": 10,
        "window in s": 60,
    }
    for label, value in asked.items():
        page.get_by_label(label, exact=True).fill(str(value))
    page.get_by_role("button", name="Send it").click()
    expect(page.get_by_test_id("sim-stop")).to_be_visible()
    expect(page.get_by_role("button", name="Sending …", exact=True)).to_be_focused()
    log_says(page, "Your own: 40 sent, 12 allowed, 28 denied.")
    require_ready_for_another(page)
    expect(page.get_by_test_id("sim-own").locator(".result")).to_have_text(
        re.compile("stayed|switched")
    )
    expect(page.get_by_label("cost", exact=True)).to_have_value("3")
    key = page.locator(".run h3").inner_text().split(",")[0]
    for place in range(4):
        status, _, told = running.ask("GET", f"/api/keys/{key}:{place}")
        assert status == 200, told
        assert [one["used"] for one in told["limits"]] == [9]


def test_numbers_out_of_range_are_not_sent(seen: Watched) -> None:
    page = seen.page
    page.get_by_test_id("sim-own").click()
    page.get_by_label("requests/s", exact=True).fill("201")
    page.get_by_role("button", name="Send it").click()
    assert page.get_by_label("requests/s", exact=True).evaluate(
        "(field) => field.matches(':invalid')"
    )
    expect(page.get_by_test_id("sim-stop")).to_have_count(0)


def test_a_simulation_stops_when_the_tab_is_hidden(seen: Watched, running: Service) -> None:
    """Traffic must be seen to end."""
    start_abuse(seen.page)
    seen.page.evaluate(AS_IF_HIDDEN)
    log_says(seen.page, re.compile(r"Abuse: \d+ sent, .*; stopped\."))
    require_ready_for_another(seen.page)
    require_quiet(running)


def test_a_simulation_stops_when_the_live_link_is_lost(seen: Watched, running: Service) -> None:
    """As above; requests would still pass."""
    start_abuse(seen.page)
    seen.in_module("state.js", "module.state.link.socket.close()")
    log_says(seen.page, re.compile(r"Abuse: \d+ sent, .*; stopped\."))
    require_ready_for_another(seen.page)
    require_quiet(running)


def test_a_simulation_stops_when_the_page_is_closed(chromium: Browser, running: Service) -> None:
    """As above."""
    with watched(chromium, f"http://{HOST}:{running.port}/#simulate") as seen:
        start_abuse(seen.page)
        seen.page.close()
        require_quiet(running)


def test_a_simulation_ends_with_the_service_and_another_can_follow(chromium: Browser) -> None:
    """A process is killed and started."""
    with (
        service() as fresh,
        watched(chromium, f"http://{HOST}:{fresh.port}/#simulate") as seen,
    ):
        page = seen.page
        start_abuse(page)
        fresh.kill()
        log_says(page, re.compile(r"; stopped\.|The service does not answer\."))
        require_ready_for_another(page)
        fresh.start()
        expect(page.get_by_test_id("connection")).to_contain_text("Live", timeout=PATIENCE)
        page.get_by_test_id("sim-burst").click()
        log_says(page, "Burst: 100 sent, all allowed.")
        assert all("ERR_" in one for one in seen.complaints), seen.complaints
