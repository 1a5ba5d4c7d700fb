"""A real browser, and what it complains about."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

from tests.servers.process import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PICTURES: Final = Path(__file__).parents[2] / "build" / "dashboard"
DESKTOP: Final = (1440, 900)
PHONE: Final = (390, 844)
AXE_SCRIPT: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
RUN_AXE: Final = """() => axe.run({
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"],
})"""
SERIOUS: Final = frozenset({"serious", "critical"})


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, as the system's packages have it."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if found is None:
        raise NotInstalledError("there is no Chromium here; `make servers` installs it on Debian")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield running
        finally:
            running.close()


@dataclass
class Watched:
    """A page, and everything that should not have happened on it."""

    page: Page
    host: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def _request(self, request: Request) -> None:
        if request.url.split("/")[2] != self.host:
            self.strangers.append(request.url)

    def require_clean(self) -> None:
        """Nothing was complained of, and nobody else was asked."""
        assert not self.complaints, self.complaints
        assert not self.strangers, self.strangers

    def look(self, theme: str, size: tuple[int, int]) -> None:
        """Show the page in this theme and size."""
        width, height = size
        self.page.emulate_media(color_scheme="light" if theme == "light" else "dark")
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(
            "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )

    def picture(self, name: str) -> None:
        """Keep what is seen, for people."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")

    def require_accessible(self) -> None:
        """axe-core finds nothing serious."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        results: dict[str, Any] = self.page.evaluate(RUN_AXE)
        found = [
            (
                one["id"],
                [node["failureSummary"] for node in one["nodes"]],
                [node["target"] for node in one["nodes"]],
            )
            for one in results["violations"]
            if one["impact"] in SERIOUS
        ]
        assert not found, found


@contextlib.contextmanager
def watched(running: Browser, url: str, *, script: bool = True) -> Iterator[Watched]:
    """A page of its own, at this address."""
    width, height = DESKTOP
    context = running.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark", java_script_enabled=script
    )
    try:
        seen = Watched(context.new_page(), url.split("/")[2])
        seen.page.set_default_timeout(20_000)
        seen.page.goto(url)
        yield seen
    finally:
        context.close()
