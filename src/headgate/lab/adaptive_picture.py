"""The picture of a replay as SVG: requests, denials, and which algorithm decided when, and why.

strip    which algorithm decided; its colour continues through every part below
upper    requests a second, admitted and denied
middle   burst ratio and deny rate, with the thresholds for entering and leaving a choice
list     every switch, by number, with its reason
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..adaptive.selector import BACKOFF, BUCKET, WINDOW
from .svg import FAINT, FONT, GRID, INK, nice, text, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..adaptive.selector import Choice
    from .adaptive_replay import TrafficReplay

WIDTH: Final = 1_000
LEFT: Final = 64
RIGHT: Final = 24
INSIDE: Final = WIDTH - LEFT - RIGHT
STRIP_TOP: Final = 96
STRIP: Final = 24
TOP: Final = STRIP_TOP + STRIP + 44
UPPER: Final = 200
LINES: Final = 84
GAP: Final = 34
BOTTOM: Final = TOP + UPPER + 2 * (GAP + LINES)
LIST_TOP: Final = BOTTOM + 66
LIST_STEP: Final = 20
MAX_LISTED: Final = 24
MAX_BARS: Final = INSIDE // 3

ADMITTED: Final = "#486581"
DENIED: Final = "#d62828"
COLOURS: Final = {WINDOW: "#0072b2", BUCKET: "#e69f00", BACKOFF: "#aa3377"}
NAMES: Final = {WINDOW: "sliding window", BUCKET: "token bucket", BACKOFF: "exponential backoff"}
LETTER: Final = 6.4
"""The approximate width of a letter."""


class Band(NamedTuple):
    """A span of time with one choice."""

    choice: Choice
    x: float
    end: float


class Panel(NamedTuple):
    """A part of the picture with one curve."""

    y: int
    top: float
    """The value at its upper edge."""
    colour: str
    form: str
    """The format of values."""


def picture(replay: TrafficReplay) -> str:
    """The SVG of a replay."""
    bands = _bands(replay)
    switches = bands[1:]
    listed = min(len(switches), MAX_LISTED)
    height = LIST_TOP + LIST_STEP * max(1, listed + (len(switches) > listed)) + 4
    size = f"viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} font-size='12' fill='{INK}' role='img'>",
        f"<title>{_described(replay)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        *_title(replay),
        *_drawn_bands(bands),
        *_upper(replay),
        *_ratio(replay),
        *_deny_rate(replay),
        *_marks(switches),
        *_times(replay),
        *_list(switches, listed),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _described(replay: TrafficReplay) -> str:
    return (
        f"{len(replay.seconds)} seconds of traffic, {replay.allowed} requests admitted, "
        f"{replay.denied} denied, {len(replay.choices) - 1} switches"
    )


def _bands(replay: TrafficReplay) -> list[Band]:
    starts = [one.since_us / 1e6 if one.epoch else 0.0 for one in replay.choices]
    ends = [*starts[1:], float(len(replay.seconds))]
    return [
        Band(choice, _x(replay, start), _x(replay, end))
        for choice, start, end in zip(replay.choices, starts, ends, strict=True)
    ]


def _title(replay: TrafficReplay) -> Iterator[str]:
    limit = replay.limit
    yield text(LEFT, 30, replay.shape.title, size=18, weight=600)
    burst = f", burst {limit.burst}" if limit.burst != limit.limit else ""
    yield text(
        LEFT,
        50,
        f"adaptive, {limit.limit} in {limit.window_us / 1e6:g} s a key{burst}",
        colour=FAINT,
    )
    form = f"{replay.allowed:,} admitted, {replay.denied:,} denied"
    yield text(WIDTH - RIGHT, 30, form, size=15, weight=600, anchor="end")
    alone = ", ".join(f"{NAMES[name]} {many:,}" for name, many in replay.alone.items())
    yield text(WIDTH - RIGHT, 50, f"each alone would admit: {alone}", colour=FAINT, anchor="end")
    x = float(LEFT)
    boxes = [(NAMES[name], colour) for name, colour in COLOURS.items()]
    for words, colour in [*boxes, ("admitted", ADMITTED), ("denied", DENIED)]:
        yield f"<rect x='{x:.0f}' y='66' width='18' height='11' rx='2' fill='{colour}'/>"
        yield text(x + 24, 76, words, size=11)
        x += 46 + 6.0 * len(words)


def _drawn_bands(bands: Sequence[Band]) -> Iterator[str]:
    for choice, x, end in bands:
        colour, width = COLOURS[choice.algorithm], end - x
        place = f"x='{x:.1f}' width='{width:.1f}' fill='{colour}'"
        yield f"<rect {place} y='{TOP}' height='{BOTTOM - TOP}' fill-opacity='0.1'/>"
        yield f"<rect {place} y='{STRIP_TOP}' height='{STRIP}'/>"
        name = NAMES[choice.algorithm]
        if width > LETTER * len(name) + 8:
            ink = INK if choice.algorithm == BUCKET else "#ffffff"
            yield text(x + width / 2, STRIP_TOP + 16, name, weight=600, colour=ink, anchor="middle")


def _upper(replay: TrafficReplay) -> Iterator[str]:
    seconds = replay.seconds
    each = -(-len(seconds) // MAX_BARS)
    bins = [seconds[at : at + each] for at in range(0, len(seconds), each)]
    bars = [
        (sum(s.allowed for s in one) / len(one), sum(s.denied for s in one) / len(one))
        for one in bins
    ]
    top = nice(max(1.0, *(allowed + denied for allowed, denied in bars)) * 1.04)
    base = TOP + UPPER
    for tick in ticks(top):
        y = base - tick / top * UPPER
        yield f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='{GRID}'/>"
        yield text(LEFT - 8, y + 4, f"{tick:g}", colour=FAINT, anchor="end")
    mean = f" (means of {each} s)" if each > 1 else ""
    yield text(LEFT, TOP - 8, f"requests a second{mean}", colour=FAINT)
    step = INSIDE / len(seconds) * each
    inset = 0.5 if step > 4 else -0.2  # Thin bars touch: gaps would form a pattern.
    for i, (allowed, denied) in enumerate(bars):
        floor = float(base)
        width = min(step, WIDTH - RIGHT - LEFT - i * step) - 2 * inset
        for value, colour in ((allowed, ADMITTED), (denied, DENIED)):
            if value:
                high = value / top * UPPER
                floor -= high
                place = f"x='{LEFT + i * step + inset:.1f}' y='{floor:.2f}'"
                yield f"<rect {place} width='{width:.1f}' height='{high:.2f}' fill='{colour}'/>"
    yield f"<path d='M{LEFT} {base}H{WIDTH - RIGHT}' stroke='{FAINT}'/>"


def _ratio(replay: TrafficReplay) -> Iterator[str]:
    values = [one.rates.burst_ratio for one in replay.seconds]
    enter, leave = replay.thresholds.enter_burst_ratio, replay.thresholds.leave_burst_ratio
    words = "burst ratio: the busiest of ten seconds against their mean"
    panel = Panel(TOP + UPPER + GAP, nice(max(1.0, enter * 1.5, *values)), COLOURS[BUCKET], "g")
    yield from _line(replay, panel, words, values, (enter, leave))


def _deny_rate(replay: TrafficReplay) -> Iterator[str]:
    values = [one.rates.deny_rate for one in replay.seconds]
    thresholds = replay.thresholds
    words = f"denied, of all requests in ten seconds; abuse only above {thresholds.enter_abuse_rate:g} requests/s"
    panel = Panel(TOP + UPPER + 2 * GAP + LINES, 1.0, COLOURS[BACKOFF], ".0%")
    marks = (thresholds.enter_deny_rate, thresholds.leave_deny_rate)
    yield from _line(replay, panel, words, values, marks)


def _line(
    replay: TrafficReplay,
    panel: Panel,
    words: str,
    values: Sequence[float],
    marks: tuple[float, float],
) -> Iterator[str]:
    y0, top, colour, form = panel
    base = y0 + LINES

    def y(value: float) -> float:
        return base - min(value, top) / top * LINES

    yield text(LEFT, y0 - 8, words, colour=FAINT)
    for tick in ticks(top, 2):
        yield f"<path d='M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}' stroke='{GRID}'/>"
        yield text(LEFT - 8, y(tick) + 4, format(tick, form), size=11, colour=FAINT, anchor="end")
    for value, name in zip(marks, ("enter", "leave"), strict=True):
        yield f"<path d='M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}' stroke='{FAINT}' stroke-dasharray='4 3'/>"
        label = f"{name} {format(value, form)}"
        yield text(WIDTH - RIGHT - 4, y(value) - 3, label, size=10, colour=FAINT, anchor="end")
    points = " ".join(f"{_x(replay, at):.1f},{y(value):.1f}" for at, value in _thinned(values))
    yield f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2' stroke-linejoin='round'/>"
    yield f"<path d='M{LEFT} {base}H{WIDTH - RIGHT}' stroke='{FAINT}'/>"


def _thinned(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """At most a few points per pixel: where there are more, the highest."""
    each = -(-len(values) // INSIDE)
    for at in range(0, len(values), each):
        yield at, max(values[at : at + each])


def _marks(switches: Sequence[Band]) -> Iterator[str]:
    free = float("-inf")
    for i, band in enumerate(switches, 1):
        x = band.x
        yield f"<path d='M{x:.1f} {STRIP_TOP}V{BOTTOM}' stroke='{INK}' stroke-width='1' stroke-opacity='0.45'/>"
        if x >= free and i <= MAX_LISTED:  # Where they are too close, only the line is drawn.
            free = x + 18
            yield from _number(x, STRIP_TOP + STRIP + 11, i)


def _number(x: float, y: float, number: int) -> Iterator[str]:
    yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='8' fill='#ffffff' stroke='{INK}'/>"
    yield text(x, y + 4, str(number), size=10, weight=600, anchor="middle")


def _times(replay: TrafficReplay) -> Iterator[str]:
    seconds = len(replay.seconds)
    for tick in ticks(seconds, 10):
        x = _x(replay, tick)
        yield f"<path d='M{x:.1f} {BOTTOM}v5' stroke='{FAINT}'/>"
        yield text(x, BOTTOM + 19, f"{tick:g}", colour=FAINT, anchor="middle")
    yield text(WIDTH - RIGHT, BOTTOM + 36, "seconds", colour=FAINT, anchor="end")


def _list(switches: Sequence[Band], listed: int) -> Iterator[str]:
    if not switches:
        yield text(LEFT, LIST_TOP, "Nothing called for another algorithm.", colour=FAINT)
    for i, band in enumerate(switches[:listed], 1):
        y = LIST_TOP + LIST_STEP * (i - 1)
        choice = band.choice
        yield from _number(LEFT + 8, y - 4, i)
        yield text(LEFT + 72, y, f"{choice.since_us / 1e6:g} s", colour=FAINT, anchor="end")
        yield f"<rect x='{LEFT + 84}' y='{y - 10}' width='12' height='12' rx='2' fill='{COLOURS[choice.algorithm]}'/>"
        yield text(LEFT + 104, y, NAMES[choice.algorithm], weight=600)
        yield text(LEFT + 262, y, choice.reason)
    if len(switches) > listed:
        y = LIST_TOP + LIST_STEP * listed
        yield text(LEFT, y, f"and {len(switches) - listed} more", colour=FAINT)


def _x(replay: TrafficReplay, second: float) -> float:
    return LEFT + second / len(replay.seconds) * INSIDE
