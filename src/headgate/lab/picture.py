"""The picture of a history: how much of its limit a key had in use over time, with faults shaded, as SVG.

    upper part   the level, the limit, and what the promise allows during faults
    lower part   the requests: admitted, admitted without the store, denied, unknown

Plain SVG, written by hand: it opens in every browser, scales, and needs no library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .history import HistoryError
from .levels import levels_of
from .svg import FAINT, FONT, GRID, INK, nice, text, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .levels import Column, Levels
    from .scene import Scene, Trail
    from .verdict import HistoryVerdict

WIDTH: Final = 1_000
HEIGHT: Final = 560
LEFT: Final = 64
RIGHT: Final = 24
TOP: Final = 104
UPPER: Final = 260
"""The height of the upper part; the lower one gets the rest."""
GAP: Final = 40
LOWER: Final = HEIGHT - TOP - UPPER - GAP - 48
INSIDE: Final = WIDTH - LEFT - RIGHT
COLUMNS: Final = INSIDE // 2
BARS: Final = INSIDE // 8

LEVEL: Final = "#0072b2"
LIMIT: Final = "#1f2933"
BOUND: Final = "#7b8794"
OVER: Final = "#d62828"
FAULT: Final = "#e69f00"
POLICY: Final = "#009e73"
DENIED: Final = "#cbd2d9"
UNKNOWN: Final = "#cc79a7"
OUTCOMES: Final = {
    "holds": ("the promise holds", POLICY),
    "violated": ("the promise is broken", OVER),
    "unjudged": ("nothing could be judged", FAULT),
}


def picture(scene: Scene, verdict: HistoryVerdict, key: str | None = None) -> str:
    """The SVG of one key: the given one, else one that broke its promise, else the busiest."""
    trail = _chosen(scene, verdict, key)
    fine, coarse = levels_of(scene, trail, COLUMNS), levels_of(scene, trail, BARS)
    at_us = [
        one.at_us for one in verdict.findings if (one.rule, one.key) == (trail.rule, trail.key)
    ]
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
            f"height='{HEIGHT}' {FONT} font-size='12' fill='{INK}'>"
        ),
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
        *_title(scene, verdict, trail),
        *_legend(scene, coarse, broken=bool(at_us)),
        *_faults(scene, fine),
        *_upper(fine, at_us),
        *_lower(coarse),
        *_times(fine),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _chosen(scene: Scene, verdict: HistoryVerdict, key: str | None) -> Trail:
    broken = {(one.rule, one.key) for one in verdict.findings}
    fitting = [one for one in scene.trails if key is None or one.key == key]
    if not fitting:
        raise HistoryError(f"the history has nothing about the key {key!r:.60}")
    return max(fitting, key=lambda one: ((one.rule, one.key) in broken, len(one.operations)))


def _title(scene: Scene, verdict: HistoryVerdict, trail: Trail) -> Iterator[str]:
    header, figures = scene.header, verdict.figures
    name = header.title or f"{header.engine} {header.mode}"
    yield text(LEFT, 30, name, size=18, weight=600)
    what = (
        f"{trail.key!r} under {trail.rule!r}: {_limit_words(trail)}"
        if trail.rule
        else f"{trail.key!r}: {_limit_words(trail)}"
    )
    yield text(LEFT, 50, what, colour=FAINT)
    said, colour = OUTCOMES[verdict.outcome]
    yield text(WIDTH - RIGHT, 30, said, size=15, weight=600, colour=colour, anchor="end")
    over = (
        f"over the limit {figures['over_limit']} of {figures['bound']} allowed, "
        f"false denials {figures['false_denials']}"
    )
    if not verdict.holds:
        over = ", ".join(f"{check} {many}" for check, many in verdict.counts.items())
    yield text(WIDTH - RIGHT, 50, over, colour=FAINT, anchor="end")


def _limit_words(trail: Trail) -> str:
    limit = trail.limit
    numbers = dict(zip(limit.__match_args__, limit.made_of, strict=True))
    words = [f"{limit.name} of {limit.limit}"]
    words += [
        f"{name.removesuffix('_us')} {_seconds(value)}"
        if name.endswith("_us")
        else f"{name} {value}"
        for name, value in numbers.items()
        if name != "limit"
    ]
    return ", ".join(words)


def _seconds(value: Any) -> str:
    return f"{value / 1e6:g} s"


def _legend(scene: Scene, levels: Levels, *, broken: bool) -> Iterator[str]:
    columns = levels.columns
    entries = [
        ("level", LEVEL, "line", True),
        ("limit", LIMIT, "line", True),
        (
            "what the promise allows",
            BOUND,
            "dashes",
            any(one.bound > levels.limit for one in columns),
        ),
        ("fault", FAULT, "shade", bool(scene.faults)),
        ("admitted", LEVEL, "box", any(one.allowed for one in columns)),
        ("admitted without the store", POLICY, "box", any(one.by_policy for one in columns)),
        ("denied", DENIED, "box", any(one.denied for one in columns)),
        ("unknown", UNKNOWN, "box", any(one.unknown for one in columns)),
        ("promise broken", OVER, "dot", broken),
    ]
    x, y = float(LEFT), 74
    for words, colour, kind, shown in entries:
        if not shown:
            continue
        if kind == "line":
            yield f"<path d='M{x:.0f} {y - 4}h18' stroke='{colour}' stroke-width='2'/>"
        elif kind == "dashes":
            yield f"<path d='M{x:.0f} {y - 4}h18' stroke='{colour}' stroke-width='1.5' stroke-dasharray='4 3'/>"
        elif kind == "dot":
            yield f"<circle cx='{x + 9:.0f}' cy='{y - 4}' r='4' fill='{colour}'/>"
        else:
            opacity = "0.25" if kind == "shade" else "1"
            yield f"<rect x='{x:.0f}' y='{y - 10}' width='18' height='11' fill='{colour}' fill-opacity='{opacity}'/>"
        yield text(x + 23, y, words, size=11)
        x += 42 + 6.0 * len(words)


def _faults(scene: Scene, levels: Levels) -> Iterator[str]:
    bottom = TOP + UPPER + GAP + LOWER
    free = [float("-inf")] * 3
    for fault in scene.faults:
        x, end = _x(levels, fault.t0), _x(levels, scene.heal(fault))
        width = max(2.0, end - x)
        yield (
            f"<rect x='{x:.1f}' y='{TOP}' width='{width:.1f}' height='{bottom - TOP}' "
            f"fill='{FAULT}' fill-opacity='0.18'/>"
        )
        words = fault.name or fault.fault.replace("_", " ")
        row = next((row for row, end_x in enumerate(free) if end_x <= x), None)
        if row is not None:  # Where there are too many, only the shade is drawn.
            free[row] = x + 10 + 6.2 * len(words)
            yield text(x + 4, TOP + 14 + 14 * row, words, size=11, colour="#8a5a00")


def _upper(levels: Levels, broken: Sequence[int]) -> Iterator[str]:
    highest = max([1.0, levels.limit, *(one.level for one in levels.columns)])
    bounds = [one.bound for one in levels.columns]
    top = nice(max(highest, min(max(bounds), 2 * highest)) * 1.08)
    base = TOP + UPPER

    def y(value: float) -> float:
        return base - min(value, top) / top * UPPER

    for tick in ticks(top):
        yield f"<path d='M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}' stroke='{GRID}'/>"
        yield text(LEFT - 8, y(tick) + 4, f"{tick:g}", colour=FAINT, anchor="end")
    yield text(LEFT, TOP - 8, levels.words, colour=FAINT)
    step = INSIDE / len(levels.columns)
    area = " ".join(
        f"L{LEFT + i * step:.1f} {y(one.level):.1f}H{LEFT + (i + 1) * step:.1f}"
        for i, one in enumerate(levels.columns)
    )
    yield f"<path d='M{LEFT} {base}{area}V{base}Z' fill='{LEVEL}' fill-opacity='0.14'/>"
    line = area.replace("L", "M", 1)
    yield f"<path d='{line}' fill='none' stroke='{LEVEL}' stroke-width='1.5' stroke-linejoin='round'/>"
    if any(bound > levels.limit for bound in bounds):
        dashes = " ".join(
            f"L{LEFT + i * step:.1f} {y(bound):.1f}H{LEFT + (i + 1) * step:.1f}"
            for i, bound in enumerate(bounds)
        )
        yield (
            f"<path d='{dashes.replace('L', 'M', 1)}' fill='none' stroke='{BOUND}' "
            "stroke-width='1.5' stroke-dasharray='4 3'/>"
        )
    yield f"<path d='M{LEFT} {y(levels.limit):.1f}H{WIDTH - RIGHT}' stroke='{LIMIT}' stroke-width='1.5'/>"
    yield text(
        WIDTH - RIGHT - 4, y(levels.limit) - 5, f"limit {levels.limit:g}", size=11, anchor="end"
    )
    for at in broken:
        place = min(
            len(levels.columns) - 1,
            max(0, (at - levels.begin) * len(levels.columns) // (levels.end - levels.begin)),
        )
        near = max(one.level for one in levels.columns[max(0, place - 2) : place + 3])
        yield f"<circle cx='{_x(levels, at):.1f}' cy='{y(near):.1f}' r='4' fill='{OVER}' stroke='#ffffff'/>"


def _lower(levels: Levels) -> Iterator[str]:
    base = TOP + UPPER + GAP + LOWER
    most = max(1, *(_asked(one) for one in levels.columns))
    top = nice(most * 1.02)
    for tick in ticks(top, 3):
        at = base - tick / top * LOWER
        yield f"<path d='M{LEFT} {at:.1f}H{WIDTH - RIGHT}' stroke='{GRID}'/>"
        yield text(LEFT - 8, at + 4, f"{tick:g}", colour=FAINT, anchor="end")
    each = (levels.end - levels.begin) / len(levels.columns) / 1e6
    yield text(LEFT, TOP + UPPER + GAP - 8, f"asked for, per {each:.3g} s", colour=FAINT)
    step = INSIDE / len(levels.columns)
    for i, one in enumerate(levels.columns):
        floor = float(base)
        for value, colour in (
            (one.allowed, LEVEL),
            (one.by_policy, POLICY),
            (one.unknown, UNKNOWN),
            (one.denied, DENIED),
        ):
            if value:
                high = value / top * LOWER
                floor -= high
                yield (
                    f"<rect x='{LEFT + i * step + 0.5:.1f}' y='{floor:.2f}' width='{step - 1:.1f}' "
                    f"height='{high:.2f}' fill='{colour}'/>"
                )


def _asked(column: Column) -> int:
    return column.allowed + column.by_policy + column.denied + column.unknown


def _times(levels: Levels) -> Iterator[str]:
    base = TOP + UPPER + GAP + LOWER
    seconds = (levels.end - levels.begin) / 1e6
    yield f"<path d='M{LEFT} {base}H{WIDTH - RIGHT}' stroke='{FAINT}'/>"
    yield f"<path d='M{LEFT} {TOP + UPPER}H{WIDTH - RIGHT}' stroke='{FAINT}'/>"
    for tick in ticks(seconds, 10):
        x = LEFT + tick / seconds * INSIDE
        yield f"<path d='M{x:.1f} {base}v5' stroke='{FAINT}'/>"
        yield text(x, base + 19, f"{tick:g}", colour=FAINT, anchor="middle")
    yield text(WIDTH - RIGHT, base + 36, "seconds", colour=FAINT, anchor="end")


def _x(levels: Levels, at: int) -> float:
    inside = min(max(at, levels.begin), levels.end)
    return LEFT + (inside - levels.begin) / (levels.end - levels.begin) * INSIDE
