"""The picture beside the table: decisions per second by number of callers, longer bars are better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")  # Needs no screen, and has to be said before pyplot is imported.

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from .contenders import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .scenarios import Result

PANELS = ("allowed_1", "allowed_64", "allowed_512", "denied_64")
COLOURS = {"limits": "#c2884a", "throttled": "#8b7fb5", "fastapi-limiter": "#a8a8a8"}
SERVER_COLOUR = "#e4e4e4"
OUR_COLOUR = "#2a7f9e"


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars of all contenders in the main scenarios, the fastest on top."""
    shown = [result for result in results if result.name in PANELS]
    figure, axes = plt.subplots(1, len(shown), figsize=(5.2 * len(shown), 5.6), squeeze=False)
    for axis, result in zip(axes[0], shown, strict=True):
        rates = sorted((1e9 / result.race.ns(name), name) for name in result.race.rounds)
        names = [name for _, name in rates]
        bars = axis.barh(names, [rate for rate, _ in rates], color=[_colour(one) for one in names])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axis.set_title(result.title, fontsize=10)
        axis.set_xlabel("decisions per second (more is better)")
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        for label in axis.get_yticklabels():
            label.set_fontweight("bold" if label.get_text() in OURS else "normal")
    figure.suptitle("Headgate (bold) beside other limiters, on one Redis server and in one run")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _colour(name: str) -> str:
    if name in OURS:
        return OUR_COLOUR
    return COLOURS.get(name.split(maxsplit=1)[0], SERVER_COLOUR)
