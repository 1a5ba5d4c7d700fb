"""The common part of the lab's pictures: colours, axes and text. Plain SVG, without a library."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

INK: Final = "#1f2933"
FAINT: Final = "#7b8794"
GRID: Final = "#e4e7eb"
FONT: Final = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def nice(value: float) -> float:
    """The next round number for the end of an axis."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next(
        step * size for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * size >= value
    )


def ticks(top: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to the top."""
    raw = top / about
    size = 1.0
    while size * 10 <= raw:
        size *= 10
    while size > raw:
        size /= 10
    step = next(one * size for one in (1, 2, 5, 10) if one * size >= raw)
    return [round(i * step, 9) for i in range(int(top / step + 1e-9) + 1)]


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    weight: int = 400,
    colour: str = INK,
    anchor: str = "start",
) -> str:
    """A line of text; unprintable characters become question marks, and long text is cut."""
    shown = "".join(char if char.isprintable() else "?" for char in words)
    shown = shown if len(shown) <= 110 else shown[:109] + "…"
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(shown)}</text>"
    )
