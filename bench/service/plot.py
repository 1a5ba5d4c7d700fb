"""The picture: requests a second of everybody, by scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OURS = "#0b6e6e"
THEIRS = "#b4bcc6"


def draw(medians: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write a bar chart, one panel a scenario."""
    import matplotlib as mpl  # noqa: PLC0415 - it takes a second

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, panels = plt.subplots(
        len(medians), 1, figsize=(8, 1.2 + 1.5 * len(medians)), squeeze=False, layout="constrained"
    )
    for (scenario, figures), (panel,) in zip(medians.items(), panels, strict=True):
        names = sorted(figures, key=lambda name: figures[name])
        colours = [OURS if name.startswith("headgate") else THEIRS for name in names]
        bars = panel.barh(names, [figures[name] for name in names], color=colours)
        panel.bar_label(bars, fmt=lambda value: f" {value:,.0f}")
        panel.set_title(f"{scenario}: requests a second on one core", loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.15)
    figure.savefig(path, dpi=144)
    plt.close(figure)
