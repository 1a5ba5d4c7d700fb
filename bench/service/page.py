"""What the dashboard costs the browser of who watches it, against its budget.

`python -m bench.service.page`. A busy cluster is played to Chromium for some seconds. Times are CPU time of the thread,
so that a machine that others use disturbs them little.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tests.dashboard import states
from tests.dashboard.browser import Watched, browser, said, watched
from tests.dashboard.player import playing

from ..harness import facts, save, table

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SECOND_AT_MOST_MS: Final = 8.0
FRAME_AT_MOST_MS: Final = 16.0
CPU_AT_MOST: Final = 2.0
"""Percent of a core."""
TRACED: Final = ["disabled-by-default-devtools.timeline", "toplevel"]


def measured(running: Browser, seen: Watched, seconds: float) -> dict[str, float]:
    """Milliseconds of main thread a second, those of script, the longest task, and percent of a core."""
    whole: Any = running.new_browser_cdp_session()
    page: Any = seen.page.context.new_cdp_session(seen.page)
    page.send("Performance.enable", {"timeDomain": "threadTicks"})

    def taken() -> dict[str, float]:
        found = page.send("Performance.getMetrics")["metrics"]
        processes = whole.send("SystemInfo.getProcessInfo")["processInfo"]
        cpu = sum(one["cpuTime"] for one in processes if one["type"] == "renderer")
        return {one["name"]: one["value"] for one in found} | {"cpu": cpu}

    before = taken()
    seen.page.wait_for_timeout(seconds * 1_000)
    after = taken()
    running.start_tracing(page=seen.page, categories=TRACED)
    seen.page.wait_for_timeout(seconds * 1_000)
    tasks, by_second = tasks_of(json.loads(running.stop_tracing())["traceEvents"])
    spent = {name: (after[name] - before[name]) / seconds for name in after}
    return {
        "main thread, ms a second": 1_000 * spent["TaskDuration"],
        "of it script, ms a second": 1_000 * spent["ScriptDuration"],
        "main thread, median second, ms": median(by_second),
        "longest task, ms": max(tasks),
        "CPU of the page's process, %": 100 * spent["cpu"],
    }


def tasks_of(events: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Milliseconds of each task of the main thread, and of all tasks of each second."""
    main = {
        (one["pid"], one["tid"])
        for one in events
        if one.get("name") == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks: list[float] = []
    by_second: Counter[int] = Counter()
    for one in events:
        if one.get("name") == "RunTask" and (one["pid"], one["tid"]) in main:
            took = one.get("tdur", one.get("dur", 0)) / 1_000
            tasks.append(took)
            by_second[one["ts"] // 1_000_000] += took
    return tasks, list(by_second.values())


BUDGET: Final = {
    "main thread, ms a second": SECOND_AT_MOST_MS,
    "longest task, ms": FRAME_AT_MOST_MS,
    "CPU of the page's process, %": CPU_AT_MOST,
}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.service.page", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--output", type=Path, default=Path("build/bench/page.json"))
    wanted = parser.parse_args()
    with (
        browser() as running,
        playing(states.steady) as player,
        watched(running, player.url) as seen,
    ):
        said(seen.page, "connection", "Live")
        seen.page.wait_for_timeout(3_000)  # What happens once at the beginning is not meant.
        found = measured(running, seen, wanted.seconds)
    rows = [
        [
            name,
            f"{value:.1f}",
            f"{BUDGET[name]:g}" if name in BUDGET else "",
            "" if name not in BUDGET else "met" if value <= BUDGET[name] else "MISSED",
        ]
        for name, value in found.items()
    ]
    print(table("The dashboard in a browser", ["", "taken", "at most", ""], rows))
    save(wanted.output, {"facts": facts(("playwright",)), "measured": found})


if __name__ == "__main__":
    main()
