"""The dashboard of a real `headgate serve`, in a real browser, with real traffic."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.sync_api import expect

from headgate.service.security.tokens import new_token
from tests.dashboard import states
from tests.dashboard.browser import Watched, timeline, watched
from tests.servers.process import HOST
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.heavy

PATIENCE: Final = 30_000
PROTOCOL: Final = "headgate.live.v1"


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service() as started:
        yield started


@pytest.fixture
def seen(chromium: Browser, running: Service) -> Iterator[Watched]:
    with watched(chromium, url(running)) as page:
        yield page
        page.require_clean()


def url(running: Service) -> str:
    return f"http://{HOST}:{running.port}/"


def decides(page: Page, algorithm: str) -> None:
    badge = page.get_by_test_id("algorithm")
    expect(badge).to_have_attribute("data-algorithm", algorithm, timeout=PATIENCE)
    band = page.locator("[data-testid=bands] li").last
    expect(band).to_have_attribute("data-algorithm", algorithm, timeout=PATIENCE)


@pytest.mark.slow
def test_the_three_buttons_lead_to_the_three_algorithms(chromium: Browser) -> None:
    """The traffic takes as long as people need to understand it: a quarter of a minute."""
    with service() as fresh, watched(chromium, url(fresh)) as seen:
        page = seen.page
        expect(page.get_by_test_id("timeline")).to_contain_text(
            "No requests yet.", timeout=PATIENCE
        )
        expect(page.get_by_test_id("tab-simulate")).to_have_attribute("aria-selected", "true")
        page.get_by_test_id("sim-steady").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("sim-log")).to_contain_text(
            "Steady: 25 sent, all allowed.", timeout=PATIENCE
        )
        expect(page.get_by_test_id("sim-steady")).to_be_focused()
        decides(page, "sliding_window")
        page.get_by_test_id("sim-burst").click()
        decides(page, "token_bucket")
        log = page.get_by_test_id("sim-log")
        expect(log).to_contain_text("Burst: 100 sent, 75 allowed, 25 denied.", timeout=PATIENCE)
        page.get_by_test_id("sim-abuse").click()
        decides(page, "exponential_backoff")
        expect(page.get_by_test_id("reason")).to_contain_text("denied")
        expect(page.get_by_test_id("sim-abuse")).to_contain_text("switched in")
        seen.picture("real-simulation")
        page.get_by_test_id("sim-stop").click()
        expect(log).to_contain_text("stopped", timeout=PATIENCE)
        bands = page.locator("[data-testid=bands] li").evaluate_all(
            "(all) => all.map((one) => one.dataset.algorithm)"
        )
        assert bands[0] == "sliding_window"
        assert {"token_bucket", "exponential_backoff"} <= set(bands)
        key = page.locator(".run h3").inner_text().split(",")[0]
        page.keyboard.press("/")
        page.keyboard.type(key)
        page.keyboard.press("Enter")
        expect(page.locator(".candidates li")).to_have_count(3, timeout=PATIENCE)
        seen.picture("real-inspector")
        seen.require_clean()


@pytest.mark.slow
@pytest.mark.parametrize("key", [states.HOSTILE, "a/b?c#d", "\u202eevil"])
def test_a_hostile_key_is_text_and_can_be_inspected_banned_and_reset(
    key: str, seen: Watched, running: Service
) -> None:
    """A page is opened, and asks again each second."""
    running.check(key, limit=2, window=60)
    running.check(key, cost=3)
    page = seen.page
    expect(page.get_by_test_id("connection")).to_contain_text("Live", timeout=PATIENCE)
    page.get_by_label("Find a key").first.fill(key)
    page.keyboard.press("Enter")
    answer = page.get_by_test_id("key-answer")
    expect(answer).to_contain_text("Allowed", timeout=PATIENCE)
    page.get_by_test_id("act-ban").click()
    page.get_by_label("Why").fill("a test")
    page.get_by_role("button", name="Ban it for 10 min").click()
    expect(answer).to_contain_text("Denied", timeout=PATIENCE)
    expect(page.locator("#panel-inspect")).to_contain_text("a test")
    assert running.check(key)["allowed"] is False
    page.get_by_role("button", name="Undo").click()
    expect(answer).to_contain_text("Allowed", timeout=PATIENCE)
    page.get_by_test_id("act-reset").click()
    page.get_by_label("Why").fill("a test")
    page.get_by_role("button", name="Reset it").click()
    expect(page.locator("#panel-inspect")).to_contain_text("Its usage is reset", timeout=PATIENCE)
    assert running.used(key) == 0
    assert page.locator("main img").count() == 0
    assert "\u202e" not in page.locator("#panel-inspect").inner_text()


@pytest.mark.slow
def test_a_limit_can_be_overridden_for_a_while(seen: Watched, running: Service) -> None:
    """As above."""
    page = seen.page
    page.evaluate("() => { location.hash = 'key=customer%3A7' }")
    expect(page.get_by_test_id("key-answer")).to_contain_text("100 left", timeout=PATIENCE)
    page.get_by_test_id("act-override").click()
    page.get_by_role("spinbutton", name="Limit").first.fill("3")
    page.get_by_label("Why").fill("a test")
    page.get_by_role("button", name="Allow 3 in a minute").click()
    expect(page.get_by_test_id("key-answer")).to_contain_text("3 left", timeout=PATIENCE)
    assert [running.check("customer:7")["allowed"] for _ in range(4)] == [True, True, True, False]
    expect(page.get_by_test_id("key-answer")).to_contain_text("Denied", timeout=PATIENCE)


@pytest.mark.slow
def test_a_keys_limit_under_a_rule_can_be_overridden_and_restored(
    chromium: Browser, tmp_path: Path
) -> None:
    """A service is started, and asked again each second."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{rule_id: login, identifier: ip_address, rate: 2/hour}]\n")
    with service("--rules", str(rules)) as ruled, watched(chromium, url(ruled)) as seen:

        def decided(many: int) -> list[bool]:
            asked = {"path": "/", "ip": "203.0.113.9"}
            return [ruled.ask("POST", "/decide", asked)[2]["allowed"] for _ in range(many)]

        assert decided(3) == [True, True, False]
        page = seen.page
        page.evaluate("() => { location.hash = 'key=203.0.113.9' }")
        expect(page.get_by_test_id("key-answer")).to_contain_text("Denied", timeout=PATIENCE)
        page.get_by_test_id("act-override").click()
        expect(page.get_by_label("Replaces")).to_have_value("login")
        page.get_by_role("spinbutton", name="Limit").first.fill("4")
        page.get_by_label("Why").fill("a test")
        page.get_by_role("button", name="Allow 4 in an hour").click()
        expect(page.get_by_test_id("key-answer")).to_contain_text("2 left", timeout=PATIENCE)
        assert decided(3) == [True, True, False]
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#panel-inspect")).to_contain_text("is undone", timeout=PATIENCE)
        assert ruled.ask("GET", "/api/overrides")[2]["rule_overrides"] == {}
        seen.require_clean()


@pytest.mark.slow
def test_an_algorithm_can_be_pinned_and_unpinned(seen: Watched) -> None:
    """The choice is agreed on once a second."""
    page = seen.page
    page.get_by_role("button", name="Pin", exact=True).click(timeout=PATIENCE)
    page.get_by_role("radio", name="Token bucket").check()
    page.get_by_label("Why").fill("launch day")
    page.get_by_role("button", name="Pin it").click()
    decides(page, "token_bucket")
    expect(page.get_by_test_id("decider")).to_contain_text("Pinned by anybody", timeout=PATIENCE)
    page.get_by_role("button", name="Unpin").click()
    expect(page.get_by_role("button", name="Pin", exact=True)).to_be_visible(timeout=PATIENCE)


@pytest.mark.slow
def test_the_page_shows_a_node_that_is_killed_and_comes_back_and_hatches_its_absence(
    chromium: Browser,
) -> None:
    """A process is killed and started."""
    with service() as fresh, watched(chromium, url(fresh)) as seen:
        page = seen.page
        connection = page.get_by_test_id("connection")
        expect(connection).to_contain_text("Live", timeout=PATIENCE)
        expect(page.get_by_test_id("verdict")).to_have_attribute(
            "data-level", "ok", timeout=PATIENCE
        )
        fresh.kill()
        expect(connection).to_contain_text("Reconnecting", timeout=10_000)
        fresh.start()
        fresh.check("k")
        expect(connection).to_contain_text("Live", timeout=PATIENCE)
        expect(page.get_by_test_id("kpi-requests")).to_contain_text("1 in all", timeout=PATIENCE)
        drawn, began = timeline(seen), seen.in_module("state.js", "module.state.history.started")
        assert {drawn[second] for second in drawn if second < int(began)} == {"hatch"}
        assert drawn[max(drawn)] != "hatch"
        assert all("ERR_" in one for one in seen.complaints), seen.complaints
        assert seen.strangers == []


@pytest.mark.slow
def test_a_viewer_token_allows_reading_only(chromium: Browser) -> None:
    """A service is started."""
    made = {
        role: new_token(f"{role}-1", role, now=datetime.now(UTC)) for role in ("viewer", "operator")
    }
    kept = ",".join(
        f"sha256:{token.role}:{token.name}:{token.sha256}" for _, token in made.values()
    )
    with service("--set", f"tokens={kept}") as closed, watched(chromium, url(closed)) as seen:
        page = seen.page
        form = page.get_by_test_id("token-form")
        expect(form).to_be_visible(timeout=PATIENCE)
        for role, may in (("viewer", False), ("operator", True)):
            page.get_by_role("textbox", name="Token").fill(made[role][0])
            page.get_by_role("button", name="Look").click()
            expect(page.get_by_test_id("connection")).to_contain_text("Live", timeout=PATIENCE)
            page.evaluate("() => { location.hash = 'key=k' }")
            expect(page.get_by_test_id("key-answer")).to_contain_text("Allowed", timeout=PATIENCE)
            expect(page.get_by_test_id("act-ban")).to_be_enabled(enabled=may)
            page.evaluate("() => { location.hash = 'simulate' }")
            expect(page.get_by_test_id("sim-steady")).to_be_enabled(enabled=may)
            page.get_by_role("button", name=re.compile(role)).click()
            expect(form).to_be_visible()
        assert all("401" in one for one in seen.complaints), seen.complaints


@pytest.mark.slow
def test_who_guesses_tokens_is_told_how_long_to_wait(chromium: Browser) -> None:
    """A service is started."""
    _, token = new_token("ann", "viewer", now=datetime.now(UTC))
    kept = f"sha256:{token.role}:{token.name}:{token.sha256}"
    with service("--set", f"tokens={kept}") as closed, watched(chromium, url(closed)) as seen:
        page = seen.page
        page.get_by_role("textbox", name="Token").fill("wrong", timeout=PATIENCE)
        for _ in range(10):
            closed.ask("GET", "/api/traffic", headers={"Authorization": "Bearer wrong"})
        page.get_by_role("button", name="Look").click()
        words = re.compile(r"Too many wrong tokens; wait [1-9]\d* s\.")
        expect(page.get_by_test_id("token-form")).to_contain_text(words, timeout=PATIENCE)
        assert all(re.search("401|429", one) for one in seen.complaints), seen.complaints


def handshake(running: Service, *, origin: str | None, protocols: str) -> str:
    """The status line that a WebSocket handshake gets."""
    lines = [
        "GET /api/live HTTP/1.1",
        f"Host: {HOST}:{running.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {protocols}",
        *([] if origin is None else [f"Origin: {origin}"]),
    ]
    with socket.create_connection((HOST, running.port), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(4_096).decode("latin-1").split("\r\n")[0]


def ticket(running: Service, origin: str) -> str:
    status, _, told = running.ask("POST", "/api/live/ticket", {}, {"Origin": origin})
    assert status == 200, told
    return f"{PROTOCOL}, ticket.{told['ticket']}"


def test_a_socket_needs_an_unused_ticket_and_the_right_origin(running: Service) -> None:
    origin = url(running).rstrip("/")
    assert "403" in handshake(running, origin=origin, protocols=PROTOCOL)
    assert "403" in handshake(running, origin=origin, protocols=f"{PROTOCOL}, ticket.made-up")
    bought = ticket(running, origin)
    assert "403" in handshake(running, origin="http://evil.example", protocols=bought)
    assert "403" in handshake(running, origin="null", protocols=ticket(running, origin))
    bought = ticket(running, origin)
    assert "101" in handshake(running, origin=origin, protocols=bought)
    assert "403" in handshake(running, origin=origin, protocols=bought)


def shape(value: Any) -> Any:
    """The names of all fields; of a list, those of its first item."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in sorted(value.items())}
    return [shape(value[0])] if isinstance(value, list) and value else None


def missing(played: Any, real: Any, path: str = "") -> list[str]:
    """Fields that are played and do not exist."""
    if isinstance(played, dict) and isinstance(real, dict):
        return [
            one
            for name, inner in played.items()
            for one in (
                missing(inner, real[name], f"{path}/{name}") if name in real else [f"{path}/{name}"]
            )
        ]
    if isinstance(played, list) and isinstance(real, list):
        return missing(played[0], real[0], f"{path}/0")
    return []


def test_the_simulated_states_have_the_same_fields_as_the_real_feed(running: Service) -> None:
    """Otherwise the pictures would show a page that nobody sees."""
    for _ in range(3):
        running.check("busy", limit=1)
    running.ask("POST", "/decide", {"path": "/login", "ip": "203.0.113.9"})
    status, _, real = running.ask("GET", "/api/live")
    assert status == 200, real
    played = states.steady(0.0)
    for name, frame in (("hello", played.hello), ("tick", played.tick), ("tables", played.tables)):
        assert missing(shape(frame), shape(real[name]), name) == []
    status, _, key = running.ask("GET", "/api/keys/busy")
    assert status == 200, key
    assert missing(shape(played.keys[states.DENIED]), shape(key), "key") == []
