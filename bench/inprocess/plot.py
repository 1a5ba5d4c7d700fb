"""The picture beside the table: one panel a scenario, shorter bars are better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")  # Needs no screen, and has to be said before pyplot is imported.

import matplotlib.pyplot as plt

from .contenders import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .scenarios import Result

PANELS = ("hot_allowed", "hot_denied", "many_keys")
COLOURS = {"limits": "#c2884a", "throttled": "#8b7fb5", "pyrate": "#a8a8a8", "floor": "#d9d9d9"}
OUR_COLOUR = "#2a7f9e"


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars of all contenders in the three main scenarios, the fastest on top."""
    shown = [result for result in results if result.name in PANELS]
    figure, axes = plt.subplots(1, len(shown), figsize=(5.2 * len(shown), 5.6), squeeze=False)
    for axis, result in zip(axes[0], shown, strict=True):
        times = sorted(((result.race.ns(name), name) for name in result.race.rounds), reverse=True)
        names = [name for _, name in times]
        bars = axis.barh(names, [ns for ns, _ in times], color=[_colour(name) for name in names])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axis.set_title(result.title, fontsize=10)
        axis.set_xlabel("ns per hit (less is better)")
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
        for label in axis.get_yticklabels():
            label.set_fontweight("bold" if label.get_text() in OURS else "normal")
    figure.suptitle("Headgate (bold) beside other limiters, in one process and one run")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _colour(name: str) -> str:
    return OUR_COLOUR if name in OURS else COLOURS[name.split(maxsplit=1)[0]]
