"""A real browser, and what it complains about."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import expect, sync_playwright

from tests.servers.process import NotInstalledError

if TYPE_CHECKING:
    import re
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
LOOKS: Final = tuple((theme, size) for theme in ("dark", "light") for size in (DESKTOP, PHONE))
PATIENCE: Final = 20_000
"""Milliseconds that a test waits for what it expects."""
AXE_SCRIPT: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
RUN_AXE: Final = """() => axe.run({
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"],
})"""
READ_TIMELINE: Final = """async (module) => {
  document.dispatchEvent(new Event("visibilitychange"));  // Draw now, and look in the same frame.
  await new Promise(requestAnimationFrame);
  const first = module.lastSecond() - module.state.range + 1;
  const canvas = document.getElementById("canvas");
  const {width, height} = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, width, height);
  const [axis, many] = [44 * width / canvas.clientWidth, module.state.range];
  const rgb = (colour) => colour.match(/\\w\\w/g).map((one) => parseInt(one, 16));
  const style = getComputedStyle(document.documentElement);
  const [allow, deny, control] = ["allow", "deny", "control"].map((name) => rgb(style.getPropertyValue(`--${name}`)));
  return Array.from({length: many}, (_, at) => {
    const x = Math.floor(axis + (at + 0.5) * (width - axis) / many);
    let [filled, hatched] = [0, 0];
    for (let y = 0; y < height; y += 1) {
      for (const side of [-1, 0, 1]) {  // A line of the grid may cover one of them.
        const place = 4 * (y * width + x + side);
        const pixel = data.subarray(place, place + 4);
        const is = (colour) => colour.every((value, part) => Math.abs(pixel[part] - value) < 16);
        if (!side && pixel[3] > 60 && (is(allow) || is(deny))) filled += 1;
        else if (pixel[3] > 20 && pixel[3] < 200 && is(control)) hatched += 1;
      }
    }
    return [first + at, filled ? "bars" : hatched > 19 ? "hatch" : "nothing"];
  });
}"""
"""What is in the middle of each second, by the colours of the pixels."""
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

    def require_no_sideways_scrolling(self) -> None:
        """Nothing is beside the page."""
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    def require_good_looks(self, name: str) -> None:
        """In all four looks: keep a picture, and let axe-core judge the page."""
        for theme, size in LOOKS:  # Pictures first: some states pass while axe-core thinks.
            self.look(theme, size)
            self.picture(f"{name}-{theme}-{size[0]}")
            self.require_no_sideways_scrolling()
        for theme, size in LOOKS:
            self.look(theme, size)
            self.require_accessible()
        self.look("dark", DESKTOP)

    def in_module(self, name: str, expression: str) -> Any:
        """What an expression says, in which `module` is a module of the page, as the page itself uses it."""
        return self.page.evaluate(
            f"""async (name) => {{
              const main = document.querySelector("script[type=module]").src;
              const module = await import(main.replace("main.js", name));
              return {expression};
            }}""",
            name,
        )

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


def timeline(seen: Watched) -> dict[int, str]:
    """What the timeline shows for each second: "bars" (or areas), "hatch", or "nothing", which is a zero."""
    return dict(seen.in_module("state.js", f"await ({READ_TIMELINE})(module)"))


def said(page: Page, test_id: str, text: str | re.Pattern[str]) -> None:
    """A part of the page says so, before long."""
    expect(page.get_by_test_id(test_id)).to_contain_text(text, timeout=PATIENCE)


@contextlib.contextmanager
def watched(running: Browser, url: str, *, script: bool = True) -> Iterator[Watched]:
    """A page of its own, at this address."""
    width, height = DESKTOP
    context = running.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark", java_script_enabled=script
    )
    try:
        seen = Watched(context.new_page(), url.split("/")[2])
        seen.page.set_default_timeout(PATIENCE)
        seen.page.goto(url)
        yield seen
    finally:
        context.close()
