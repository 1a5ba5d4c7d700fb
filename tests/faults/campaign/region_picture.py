"""Draw three regions over a cut, in each mode: `python -m tests.faults.campaign.region_picture`.

Real regions, each with a Redis and a node, are asked for one key for some windows. East asks for much more than its
share, north for little, and west, which is cut off for a while, for more than its share, too. What each admitted in
each window is drawn, and written into the file as its description.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from headgate.lab.svg import FONT, text
from tests.faults.judged_regions import NAMES, FleetNeeds
from tests.faults.region_fleet import region_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PICTURE = Path(__file__).parents[3] / "docs/explanation/pictures/fault-regions.svg"
LIMIT = 90
WINDOW_S = 3
WINDOWS = 8
CUT = (2.2, 5.2)
"""From when to when west is cut off, in windows."""
PACES_S = {"east": 0.012, "north": 0.25, "west": 0.02}
MODES = ("split", "merge", "escrow")
COLOURS = {"east": "#2a7fb8", "north": "#009e73", "west": "#b87900"}
GREY = "#787878"
WIDTH, PANEL, LEFT, TOP = 640, 150, 64, 48

Windows = list[dict[str, int]]
"""What each region admitted, window by window."""


def measure(mode: str, folder: Path) -> Windows:
    """Ask in all regions while one of them is cut off for a while, and count."""
    with region_fleet(folder, FleetNeeds(mode), limit=LIMIT, seconds=WINDOW_S) as fleet:

        def cut() -> None:
            time.sleep(CUT[0] * WINDOW_S)  # All is well until then.
            fleet.cut_off("west")
            time.sleep((CUT[1] - CUT[0]) * WINDOW_S)  # So long it lasts.
            fleet.mend()

        _, run = fleet.run(mode, cut, paces_s=PACES_S, windows=WINDOWS, kind="partition")
    return [by_region for _, by_region in sorted(run.admitted.items())][:WINDOWS]


def picture_of(modes: Mapping[str, Sequence[Mapping[str, int]]]) -> str:
    """A panel for each mode, and in it a bar for each window."""
    height = TOP + PANEL * len(modes) + 28
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
            f"height='{height}' {FONT} font-size='12' fill='{GREY}'>"
        ),
        f"<desc>{escape(json.dumps(modes))}</desc>",
        text(LEFT, 18, f"Units admitted in each window of {WINDOW_S} s", weight=600, colour=GREY),
    ]
    for place, name in enumerate(NAMES):
        x = LEFT + place * 80
        parts.append(f"<rect x='{x}' y='28' width='10' height='10' fill='{COLOURS[name]}'/>")
        parts.append(text(x + 15, 37, name, colour=GREY))
    highest = max(sum(window.values()) for windows in modes.values() for window in windows)
    for place, (mode, windows) in enumerate(modes.items()):
        parts += _panel(TOP + place * PANEL, mode, windows, max(highest, LIMIT) * 1.08)
    last = TOP + PANEL * len(modes) + 14
    parts.append(text(_x(sum(CUT) / 2), last, "west is cut off", colour=GREY, anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(window: float) -> float:
    return LEFT + window * (WIDTH - LEFT - 12) / WINDOWS


def _panel(
    top: float, mode: str, windows: Sequence[Mapping[str, int]], highest: float
) -> list[str]:
    floor, room = top + PANEL - 8, PANEL - 24

    def rect(x: float, y: float, width: float, high: float, fill: str) -> str:
        return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{high:.1f}' {fill}/>"

    line = floor - LIMIT / highest * room
    parts = [
        rect(
            _x(CUT[0]),
            top + 8,
            _x(CUT[1]) - _x(CUT[0]),
            PANEL - 16,
            f"fill='{GREY}' opacity='0.18'",
        )
    ]
    for place, window in enumerate(windows):
        y = floor
        for name in NAMES:
            high = window[name] / highest * room
            y -= high
            bar = rect(_x(place + 0.12), y, _x(0.76) - LEFT, high, f"fill='{COLOURS[name]}'")
            parts.append(bar)
        total = f"{sum(window.values())}"
        y = line if line < y < line + 14 else y  # So that the line of the limit does not cross it.
        parts.append(text(_x(place + 0.5), y - 4, total, size=11, colour=GREY, anchor="middle"))
    parts += [
        f"<line x1='{LEFT}' x2='{WIDTH - 12}' y1='{at:.1f}' y2='{at:.1f}' stroke='{GREY}' {dashes}/>"
        for at, dashes in ((floor, ""), (line, "stroke-dasharray='4 3'"))
    ]
    parts.append(text(LEFT - 8, line + 4, f"{LIMIT}", size=11, colour=GREY, anchor="end"))
    parts.append(text(LEFT - 8, floor, mode, weight=600, colour=GREY, anchor="end"))
    return parts


def main() -> None:
    """Measure, and draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign.region_picture")
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="headgate-regions-") as folder:
        modes = {mode: measure(mode, Path(folder)) for mode in MODES}
    options.out.write_text(picture_of(modes), encoding="utf-8")
    print(f"written: {options.out}")  # noqa: T201


if __name__ == "__main__":
    main()
