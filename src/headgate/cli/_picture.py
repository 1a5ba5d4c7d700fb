"""A timeline as a picture: bars for what passed, bars for what was denied, and a sum for each window.

    admitted    10 ┤          ██████████
                   │          ████████████████████████████████████
                   └────────────────────┬───────────────────┬─────
    denied      10 ┤                    ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄
                    0                   1 min               2 min
    admitted              100                 100

A column at its full height means that all of its hits passed. A bar is only empty if nothing is
there, and only full if nothing is missing, whatever rounding would say.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ._formatting import number, short
from ._simulation import COLUMNS, WINDOWS
from ._terminal import GREEN, RED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._simulation import Timeline
    from ._terminal import Screen

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
MAX_ROWS: Final = 4
LABEL: Final = 17
"""How wide the part to the left of the axis is."""
WIDTH: Final = WINDOWS * COLUMNS


def draw(
    timeline: Timeline, labels: Sequence[str], screen: Screen, now_us: int | None = None
) -> list[str]:
    """The lines of the picture; `labels` are for the edges of the windows."""
    full = timeline.plan.per_column
    rows = min(MAX_ROWS, full)
    lines = _bars("admitted", timeline.admitted, screen, full=full, rows=rows, colour=GREEN)
    tick = "┬" + "─" * (COLUMNS - 1)
    lines.append(" " * LABEL + "└─" + tick[1:] + tick * (WINDOWS - 1) + "┘")
    lines += _bars("denied", timeline.denied, screen, full=full, rows=max(1, rows // 2), colour=RED)
    if now_us is not None:
        lines.append(_mark(timeline.plan.edges_us, now_us))
    lines.append(_labels(labels))
    lines.append(_sums("admitted", timeline.admitted))
    lines.append(_sums("denied", timeline.denied))
    return [line.rstrip() for line in lines]


def _bars(
    name: str, values: Sequence[int], screen: Screen, *, full: int, rows: int, colour: str
) -> list[str]:
    eighths = [_height(value, full, rows * 8) for value in values]
    lines = []
    for row in reversed(range(rows)):
        cells = "".join(EIGHTHS[max(0, min(8, height - row * 8))] for height in eighths)
        top = row == rows - 1
        label = f"  {name:<8}{short(full):>{LABEL - 11}} ┤" if top else " " * LABEL + "│"
        lines.append(label + screen.paint(cells.rstrip(), colour))
    return lines


def _height(value: int, full: int, most: int) -> int:
    """How high a bar is: 0 only for nothing, `most` only for everything."""
    if value in {0, full}:
        return most if value else 0
    return min(max(1, (2 * value * most + full) // (2 * full)), most - 1)


def _mark(edges_us: Sequence[int], now_us: int) -> str:
    for window, (start_us, end_us) in enumerate(pairwise(edges_us)):
        if start_us <= now_us < end_us:
            column = window * COLUMNS + (now_us - start_us) * COLUMNS // (end_us - start_us)
            return " " * (LABEL + 1 + column) + "▲ now"
    raise AssertionError("the first window is the one that now lies in")


def _labels(labels: Sequence[str]) -> str:
    """Each label under its tick; the last one ends there."""
    line = ""
    for i, label in enumerate(labels[:-1]):
        line = line.ljust(LABEL + 1 + i * COLUMNS) + label
    return line + labels[-1].rjust(LABEL + 2 + WIDTH - len(line))


def _sums(name: str, values: Sequence[int]) -> str:
    sums = [sum(values[i : i + COLUMNS]) for i in range(0, WIDTH, COLUMNS)]
    return f"  {name:<{LABEL - 1}}" + "".join(f"{number(one):^{COLUMNS}}" for one in sums)
