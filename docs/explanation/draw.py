"""Draw the timelines of the algorithms, from the algorithms: `python docs/explanation/draw.py`.

Every picture is a story: hits at given times go through the real `take`, and what comes out is drawn.
Filled green dots were admitted, hollow red ones denied, and the curve below is the state. A story that
the algorithms tell differently one day makes another picture, and `tests/unit/test_examples.py` notices:
the answers are also written into each file as its description.

The pictures have no background, and every colour has a contrast of 3 to 1 or more on white and on
near-black, so they can be read on light and on dark pages. Green and red are told apart by shape, too.

The file is long because it holds one story per picture; the stories share little but the canvas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES: Final = Path(__file__).with_name("pictures")
SECOND: Final = 1_000_000
START: Final = 1_800_000_000 * SECOND  # A full hour, so windows of 10 s begin at 0, 10, 20 …

GREEN, RED, BLUE, ORANGE, GREY = "#009e73", "#d55e00", "#2a7fb8", "#b87900", "#787878"

Curve = Callable[[Any, int], float]
"""The height of the curve for a state at a time in microseconds."""


Telling = Iterator[Any]
"""A story first gives the answers as text and then, if asked on, the figure."""


class Hit(NamedTuple):
    """One attempt, when it came and what it was answered."""

    at: float
    allowed: bool


class Run(NamedTuple):
    """What a limit answered, and the state it was in between."""

    hits: list[Hit]
    moments: list[float]
    heights: list[float]

    def told(self) -> str:
        """The answers as text."""
        return "; ".join(
            f"{word} at " + (", ".join(f"{hit.at:g}" for hit in self.hits if hit.allowed is yes))
            for word, yes in (("admitted", True), ("denied", False))
        )


def run(limit: Limit, times: Sequence[float], end: float, curve: Curve, step: float = 0.05) -> Run:
    """Offer a hit at each of `times`, and follow the state until `end`."""
    state: Any = None
    hits: list[Hit] = []
    moments: list[float] = []
    heights: list[float] = []

    def follow(at: float) -> None:
        moments.append(at)
        heights.append(0.0 if state is None else curve(state, _us(at)))

    waiting = sorted(times)
    for at in sorted({*(i * step for i in range(round(end / step) + 1)), *waiting}):
        follow(at)
        while waiting and waiting[0] <= at:
            waiting.pop(0)
            state, answer = limit.take(state, _us(at), 1)
            hits.append(Hit(at, answer[0]))
            follow(at)
    return Run(hits, *thinned(moments, heights))


def thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """The same line without the points that lie on the way between their neighbours."""
    kept = [0]
    for i in range(1, len(xs) - 1):
        (x0, y0), (x1, y1), (x2, y2) = ((xs[j], ys[j]) for j in (kept[-1], i, i + 1))
        if abs((y1 - y0) * (x2 - x0) - (y2 - y0) * (x1 - x0)) > 1e-6:
            kept.append(i)
    kept.append(len(xs) - 1)
    return [xs[i] for i in kept], [ys[i] for i in kept]


def _us(at: float) -> int:
    return START + round(at * SECOND)


def every(gap: float, start: float, end: float) -> list[float]:
    """Times from `start` to just before `end`."""
    return [round(start + i * gap, 3) for i in range(round((end - start) / gap))]


FIRST: Final = 5  # Nothing happens before; the axis starts here.
TRAFFIC: Final = [*every(0.5, 7.5, 12.5), *every(1.25, 13.75, 30)]
"""The same hits for four algorithms: a burst around the boundary at 10, then a steady stream."""


def used(limit: Limit) -> Curve:
    """What `stats` counts."""
    return limit.used


def weighted(limit: SlidingWindow) -> Curve:
    """The faded previous count and the current one, without rounding to whole units."""

    def height(state: tuple[int, int, int], now_us: int) -> float:
        start_us = now_us - now_us % limit.window_us
        was_us, previous, current = state
        if was_us < start_us:
            previous, current = (current if was_us == start_us - limit.window_us else 0), 0
        return previous * (1 - (now_us - start_us) / limit.window_us) + current

    return height


def backlog(limit: TokenBucket) -> Curve:
    """The backlog in units."""

    def height(state: int, now_us: int) -> float:
        stamp_us, grains = limit.encode(state)
        return max(0, grains - (now_us - stamp_us) * 256) / limit.emission

    return height


def canvas(title: str, *, lower: float = 1.6, height: float = 2.3) -> tuple[Any, Axes, Axes]:
    """A lane for hits above a field for the state."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the stories can be told without it

    plt.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
            "font.size": 9,
            "text.color": GREY,
            "axes.edgecolor": GREY,
            "axes.labelcolor": GREY,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "svg.fonttype": "none",  # Text stays text: small files that a screen reader can read.
            "svg.hashsalt": "headgate",
        }
    )
    figure, (lane, field) = plt.subplots(
        2, 1, sharex=True, figsize=(5.4, height), height_ratios=(0.55, lower)
    )
    figure.subplots_adjust(left=0.075, right=0.965, top=0.86, bottom=0.15, hspace=0.06)
    figure.text(0.075, 0.93, title, weight="bold", size=9.5)
    for axes in (lane, field):
        axes.patch.set_visible(False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    lane.set_yticks([])
    lane.set_ylim(-1, 1)
    lane.spines["left"].set_visible(False)
    lane.spines["bottom"].set_visible(False)
    lane.tick_params(bottom=False)
    return figure, lane, field


def draw_hits(lane: Axes, hits: Iterable[Hit], *, size: float = 4.6) -> None:
    """Dots: filled and high when admitted, hollow and low when denied."""
    admitted = [hit.at for hit in hits if hit.allowed]
    denied = [hit.at for hit in hits if not hit.allowed]
    lane.plot(admitted, [0.45] * len(admitted), "o", color=GREEN, ms=size, clip_on=False)
    lane.plot(
        denied,
        [-0.45] * len(denied),
        "o",
        mfc="none",
        mec=RED,
        mew=1.1,
        ms=size - 0.6,
        clip_on=False,
    )


def legend(figure: Any, admitted: int, denied: int) -> None:
    """How many dots of each kind there are."""
    figure.text(0.985, 0.93, f"○ {denied} denied", color=RED, ha="right")
    figure.text(0.81, 0.93, f"● {admitted} admitted", color=GREEN, ha="right")


def draw_curve(field: Axes, told: Run, *, color: str = BLUE) -> None:
    """The state, as an area."""
    field.plot(told.moments, told.heights, color=color, lw=1.3)
    field.fill_between(told.moments, told.heights, color=color, alpha=0.22, lw=0)


def draw_limit(field: Axes, limit: float, end: float, name: str) -> None:
    """The height that a state may not pass."""
    field.axhline(limit, color=GREY, lw=1, ls=(0, (4, 3)))
    field.text(end, limit * 1.03, name, ha="right", va="bottom", size=8)


def draw_windows(axes: Iterable[Axes], window: float, end: float) -> None:
    """Thin lines where a window ends."""
    for one in axes:
        for i in range(1, round(end / window) + 1):
            one.axvline(i * window, color=GREY, lw=0.6, ls=":", alpha=0.8)


def timeline(
    title: str,
    limit: Limit,
    curve: Curve,
    label: str,
    *,
    windows: bool = True,
    times: Sequence[float] = TRAFFIC,
    end: float = 30,
) -> Telling:
    """The picture of most algorithms."""
    told = run(limit, times, end, curve)
    yield told.told()
    figure, lane, field = canvas(title)
    if windows:
        draw_windows((lane, field), limit.window_us / SECOND, end)
    draw_hits(lane, told.hits)
    admitted = sum(hit.allowed for hit in told.hits)
    legend(figure, admitted, len(told.hits) - admitted)
    draw_curve(field, told)
    draw_limit(field, limit.limit, end, f"limit {limit.limit}")
    field.set_ylim(0, limit.limit * 1.3)
    field.set_yticks(range(limit.limit + 1))
    field.set_xlim(FIRST, end)
    field.text(FIRST + 0.2, limit.limit * 1.03, label, size=8, va="bottom", color=BLUE)
    _seconds(field, end, start=FIRST)
    yield figure


def _seconds(field: Axes, end: float, step: int = 5, start: int = 0) -> None:
    ticks = range(start, round(end) + 1, step)
    field.set_xticks(ticks, [f"{tick} s" if tick else "0" for tick in ticks])


def fixed_window() -> Telling:
    """Twice the limit around a boundary."""
    limit = FixedWindow(5, 10 * SECOND)
    yield from timeline("fixed_window, 5 per 10 s", limit, used(limit), "count of this window")


def sliding_window() -> Telling:
    """The previous window fades."""
    limit = SlidingWindow(5, 10 * SECOND)
    yield from timeline("sliding_window, 5 per 10 s", limit, weighted(limit), "weighted count")


def sliding_log() -> Telling:
    """Exact."""
    limit = SlidingLog(5, 10 * SECOND)
    yield from timeline(
        "sliding_log, 5 per 10 s", limit, used(limit), "hits in the last 10 s", windows=False
    )


def token_bucket() -> Telling:
    """A burst, then a steady rate."""
    limit = TokenBucket(5, 10 * SECOND)
    yield from timeline(
        "token_bucket, 5 per 10 s burst 5", limit, backlog(limit), "backlog in units", windows=False
    )


def sliding_window_worst() -> Telling:
    """Almost twice the limit in one span."""
    limit = SlidingWindow(10, 10 * SECOND)
    end, late, soon = 22.0, 9.95, 19.0
    told = run(limit, [late] * 10 + [soon] * 10, end, weighted(limit))
    yield told.told()
    figure, lane, field = canvas("sliding_window, 10 per 10 s", height=3.3, lower=0.8)
    draw_windows((lane, field), 10, end)
    lane.set_ylim(-0.5, 10.5)
    for i, hit in enumerate(told.hits):
        dot = {"color": GREEN} if hit.allowed else {"mfc": "none", "mec": RED, "mew": 1.1}
        lane.plot([hit.at], [i % 10], "o", ms=3.6, clip_on=False, **dot)
    admitted = sum(hit.allowed for hit in told.hits)
    legend(figure, admitted, len(told.hits) - admitted)
    lane.annotate(
        "",
        (late, 4.5),
        (soon, 4.5),
        arrowprops={
            "arrowstyle": "|-|,widthA=.4,widthB=.4",
            "color": RED,
            "shrinkA": 6,
            "shrinkB": 6,
        },
    )
    text = f"{admitted} admitted\nwithin {soon - late:g} s"
    lane.text(14.5, 5.0, text, ha="center", color=RED, weight="bold", va="bottom")
    lane.text(late - 0.5, 4.5, "10 just before\nthe window ends", ha="right", va="center", size=8)
    lane.text(soon + 0.4, 4.5, "9 of 10\nlate in\nthe next", ha="left", va="center", size=8)
    draw_curve(field, told)
    draw_limit(field, 10, 2.0, "limit 10")
    field.set_ylim(0, 13.5)
    field.set_yticks([0, 5, 10])
    field.set_xlim(0, end)
    field.text(10.2, 10.4, "weighted count: fades as the window runs", size=8, color=BLUE)
    _seconds(field, end)
    yield figure


def exponential_backoff() -> Telling:
    """Levels go up under hammering and down in silence."""
    limit = ExponentialBackoff(16, 10 * SECOND)
    end = 100.0
    times = [*every(0.25, 0, 25), *every(3, 62, 98)]

    def level(state: Any, now_us: int) -> float:
        return limit.peek(state, now_us, 1)[4]

    told = run(limit, times, end, level)
    yield told.told()
    figure, lane, field = canvas("exponential_backoff, 16 per 10 s")
    draw_windows((lane, field), 10, end)
    draw_hits(lane, told.hits, size=3.4)
    admitted = sum(hit.allowed for hit in told.hits)
    legend(figure, admitted, len(told.hits) - admitted)
    draw_curve(field, told, color=ORANGE)
    field.set_ylim(0, 6.4)
    field.set_yticks(range(6))
    field.set_xlim(0, end)
    cool = next(at for at, height in zip(told.moments, told.heights, strict=True) if height == 5)
    field.annotate(
        "",
        (cool, 5.5),
        (cool + 10, 5.5),
        arrowprops={"arrowstyle": "|-|,widthA=.3,widthB=.3", "color": RED, "lw": 1},
    )
    field.text(cool + 5, 5.6, "cool-down", ha="center", size=8, color=RED, va="bottom")
    field.text(0.8, 5.1, "level", size=8, color=ORANGE)
    for at, height in ((45, 4), (55, 3), (65, 2), (75, 1)):
        field.text(at, height + 0.12, f"limit {limit.limit_at(height)}", ha="center", size=8)
    _seconds(field, end, 10)
    yield figure


def adaptive() -> Telling:
    """A switch hands out nothing: the state of the next test was current all the time."""
    window = Adaptive(5, 10 * SECOND, chosen="sliding_window")
    bucket = Adaptive(5, 10 * SECOND, chosen="token_bucket")
    end, switch = 30.0, 12.75
    state: Any = None
    hits: list[Hit] = []
    moments: list[float] = []
    heights: tuple[list[float], list[float]] = ([], [])
    curves = weighted(window.candidates[0]), backlog(bucket.candidates[1])

    def follow(at: float) -> None:
        moments.append(at)
        for height, curve, part in zip(heights, curves, split(state), strict=False):
            height.append(0.0 if part is None else curve(part, _us(at)))

    for at in sorted({*every(0.05, 0, end), *TRAFFIC}):
        follow(at)
        if at in TRAFFIC:
            limit = window if at < switch else bucket
            state, answer = limit.take(state, _us(at), 1)
            hits.append(Hit(at, answer[0]))
            follow(at)
    told = Run(hits, moments, heights[0])
    yield told.told()
    figure, lane, field = canvas("adaptive, 5 per 10 s")
    draw_hits(lane, hits)
    admitted = sum(hit.allowed for hit in hits)
    legend(figure, admitted, len(hits) - admitted)
    for height, color in zip(heights, (BLUE, ORANGE), strict=True):
        line = list(zip(moments, height, strict=True))
        decides = [(at, y) for at, y in line if (at <= switch) == (color == BLUE)]
        field.plot(*thinned(moments, height), color=color, lw=1, alpha=0.9, ls=(0, (2, 1.5)))
        draw_curve(field, Run([], *thinned(*zip(*decides, strict=True))), color=color)
    for axes in (lane, field):
        axes.axvline(switch, color=GREY, lw=1.2)
    field.axhline(5, color=GREY, lw=1, ls=(0, (4, 3)))
    field.text(FIRST + 0.2, 5.1, "limit 5", va="bottom", size=8)
    field.set_ylim(0, 8.6)
    field.set_yticks(range(6))
    field.set_xlim(FIRST, end)
    field.text(switch - 0.3, 7.4, "sliding_window decides", ha="right", size=8, color=BLUE)
    field.text(switch + 0.3, 7.4, "token_bucket decides", ha="left", size=8, color=ORANGE)
    _seconds(field, end, start=FIRST)
    yield figure


class Holder(NamedTuple):
    """Someone who wants a slot at `start` and lets go at `end`, or crashes before that."""

    name: str
    start: float
    end: float
    crashes: bool = False


HOLDERS: Final = (
    Holder("a", 1, 9),
    Holder("b", 3, 5.5, crashes=True),
    Holder("c", 7, 8),
    Holder("d", 10, 18),
    Holder("e", 14, 20),
    Holder("f", 16.5, 22),
    Holder("g", 19, 26),
)


def concurrency() -> Telling:
    """Slots that are let go, and one that expires."""
    limit = Concurrency(2, 10 * SECOND)
    end = 30.0
    state: Any = None
    hits: list[Hit] = []
    bars: list[tuple[Holder, float]] = []
    events = sorted([(h.start, 1, h) for h in HOLDERS] + [(h.end, 0, h) for h in HOLDERS])
    for at, starts, holder in events:
        if starts:
            state, answer = limit.hold(state, _us(at), 1, holder.name)
            hits.append(Hit(at, answer[0]))
            if answer[0]:
                # Whoever is alive renews; a crashed holder's slot ends `ttl` after its start.
                bars.append((holder, holder.start + 10 if holder.crashes else holder.end))
        elif not holder.crashes:
            state = limit.release(state, _us(at), holder.name)
    told = Run(hits, [], [])
    yield told.told()
    figure, lane, field = canvas("concurrency, 2 slots, ttl 10 s")
    draw_hits(lane, hits)
    for hit, holder in zip(hits, HOLDERS, strict=True):
        if not hit.allowed:
            lane.text(hit.at + 0.5, -0.5, f"{holder.name}: full", size=8, va="center", color=RED)
    admitted = sum(hit.allowed for hit in hits)
    legend(figure, admitted, len(hits) - admitted)
    rows: list[float] = [0.0, 0.0]
    for holder, ends in bars:
        row = 0 if rows[0] <= holder.start else 1
        rows[row] = ends
        alive = min(ends, holder.end)
        field.barh(
            row, alive - holder.start, left=holder.start, height=0.62, color=BLUE, alpha=0.75
        )
        field.text(holder.start + 0.35, row, holder.name, va="center", color="white", weight="bold")
        if holder.crashes:
            field.barh(
                row,
                ends - alive,
                left=alive,
                height=0.62,
                fill=False,
                edgecolor=RED,
                ls="--",
                lw=1.1,
            )
            field.plot([alive], [row], "x", color=RED, ms=7, mew=2)
            field.text(
                alive + 0.45, row, "crashed; free after ttl", va="center", size=7.5, color=RED
            )
    field.set_ylim(-0.6, 1.6)
    field.set_yticks([0, 1], ["1", "2"])
    field.set_xlim(0, end)
    _seconds(field, end)
    yield figure


def calendar() -> Telling:
    """A month is a month."""
    limit = CalendarWindow(40, calendar=Calendar("month", "Europe/Berlin"))
    first = datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp()  # Midnight in Berlin.
    state: Any = None
    days: list[float] = []
    counts: list[int] = []
    hits: list[Hit] = []
    for eighth in range(8 * 105):
        now_us = round((first + eighth * 10_800) * SECOND)
        if eighth % 4 == 2 and eighth // 8 % 7 < 5:  # Twice a working day.
            state, answer = limit.take(state, now_us, 1)
            hits.append(Hit(eighth / 8, answer[0]))
        days.append(eighth / 8)
        counts.append(0 if state is None else limit.used(state, now_us))
    told = Run(hits, *thinned(days, counts))
    yield told.told()
    figure, lane, field = canvas("fixed_window, 40 per calendar month in Europe/Berlin")
    draw_hits(lane, hits, size=2.6)
    draw_curve(field, told)
    draw_limit(field, 40, 105, "limit 40")
    field.set_ylim(0, 56)
    field.set_yticks([0, 20, 40])
    field.set_xlim(0, 105)
    starts = []
    at_us = round(first * SECOND)
    while (at_us - first * SECOND) / SECOND / 86_400 < 105:
        starts.append((at_us / SECOND - first) / 86_400)
        at_us = limit.bounds_us(at_us)[1]
    names = (
        "1 January\n31 days",
        "1 February\n28 days",
        "1 March\n31 days, one of 23 h",
        "1 April",
    )
    for start in starts:
        for axes in (lane, field):
            axes.axvline(start, color=GREY, lw=0.6, ls=":", alpha=0.8)
    field.set_xticks(starts, names, size=8, ha="left")
    figure.subplots_adjust(bottom=0.2)
    yield figure


STORIES: Final = {
    story.__name__: story
    for story in (
        fixed_window,
        sliding_window,
        sliding_log,
        token_bucket,
        exponential_backoff,
        adaptive,
        concurrency,
        calendar,
        sliding_window_worst,
    )
}


def draw(folder: Path, kind: str = "svg") -> None:
    """Draw every picture into `folder`."""
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, story in STORIES.items():
        told, figure = story()
        metadata = {"Date": None, "Description": told} if kind == "svg" else None
        figure.savefig(folder / f"{name}.{kind}", transparent=True, dpi=110, metadata=metadata)
        plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES, *sys.argv[2:3])
