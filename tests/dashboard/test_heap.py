"""A page that stays open: an hour of frames must not leave anything behind."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard import states
from tests.dashboard.browser import browser, watched
from tests.dashboard.player import playing, tables_of, tick_of
from tests.servers.fixtures import installed

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

HOUR: Final = 3_600
MEGABYTE: Final = 1_000_000
KEEP_SOCKET: Final = """(() => {
  const Real = window.WebSocket;
  window.WebSocket = class extends Real {
    constructor(...given) {
      super(...given);
      window.feed = this;
    }
  };
})()"""
FEED: Final = """async ({tick, tables, from, to}) => {
  const send = (frame) => window.feed.onmessage({data: JSON.stringify(frame)});
  const algorithms = ["sliding_window", "token_bucket", "exponential_backoff"];
  for (let second = from; second < to; second += 1) {
    const [at, now] = [tick.at + second, tick.now + second];
    const [before, after] = [algorithms[Math.floor(second / 60) % 3], algorithms[Math.floor(second / 60 + 1) % 3]];
    const reason = `the reason of second ${second}`;
    const choice = {...tick.choice, algorithm: after, epoch: 1000 + Math.floor(second / 60), since: at, reason};
    const changed = {at, scope: "*", from: before, to: after, epoch: choice.epoch, reason, pinned_by: null};
    const seconds = {from: at - 9, allowed: Array(10).fill(second % 700), denied: Array(10).fill(second % 90)};
    send({...tick, at, now, choice, seconds, seen: second % 120 < 5 ? "node" : "cluster",
      second: {...tick.second, allowed: second % 700}, switch: second % 60 ? null : changed});
    if (second % 2 === 0) {
      const named = (row, index) => ({...row, key: `key:${second}:${index}`, until: now + 30});
      const rules = tables.rules.rows.map((row, index) => (index < 3 ? {...row, rule: `rule-${second}-${index}`} : row));
      send({...tables, now, at, rules: {...tables.rules, rows: rules},
        blocked: {...tables.blocked, rows: tables.blocked.rows.map(named)}, top: {...tables.top, rows: tables.top.rows.map(named)}});
    }
    if (second % 20 === 0) await new Promise(requestAnimationFrame);
  }
}"""


def test_an_hour_of_frames_with_new_keys_and_rules_does_not_grow_the_heap() -> None:
    """An hour of frames takes some seconds; every twentieth second is drawn."""
    with (
        installed(),
        browser() as chromium,
        playing(states.steady) as player,
        watched(chromium, player.url) as seen,
    ):
        page = seen.page
        page.add_init_script(KEEP_SOCKET)
        page.reload()
        expect(page.get_by_test_id("connection")).to_contain_text("Live", timeout=20_000)
        player.fall_silent()
        state = states.steady(time.time())
        devtools: Any = page.context.new_cdp_session(page)

        def heap_after(begin: int, end: int) -> tuple[float, int]:
            page.set_default_timeout(120_000)
            frames = {"tick": tick_of(state), "tables": tables_of(state), "from": begin, "to": end}
            page.evaluate(FEED, frames)
            for _ in range(2):
                devtools.send("HeapProfiler.collectGarbage")
            used = devtools.send("Runtime.getHeapUsage")["usedSize"]
            return used / MEGABYTE, devtools.send("Memory.getDOMCounters")["nodes"]

        early, _ = heap_after(1, HOUR // 4)
        middle, nodes_before = heap_after(HOUR // 4, HOUR // 2)
        late, nodes = heap_after(HOUR // 2, HOUR)
        seen.require_clean()
    assert late <= 10, (early, middle, late)
    assert late - middle <= 1, (early, middle, late)
    assert nodes <= nodes_before * 1.2 + 100
