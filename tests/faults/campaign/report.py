"""The report of a campaign: one table, and a picture of every run, as HTML; the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tests.faults.campaign.terms import USUAL, late_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.faults.campaign.terms import FaultFigures

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; color: #1f2933; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .3rem .6rem; border-bottom: 1px solid #e4e7eb; }
th { text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: #b42318; font-weight: 600; } img { width: 32%; min-width: 20rem; }
"""
BETWEEN_REGIONS = ("F35", "F36")
"""How the numbers of such faults begin."""
COLUMNS = (
    "fault",
    "",
    "runs",
    "broken",
    "over the limit",
    "of a bound of",
    "answers",
    "late",
    "worst",
    "strays",
    "left after",
    "back after",
)


def summary_of(results: list[FaultFigures]) -> list[dict[str, Any]]:
    """One line for each fault."""
    rows = []
    for number, group in groupby(results, key=lambda one: one.fault):
        runs = list(group)
        left = [one.left_after_ms for one in runs if one.left_after_ms is not None]
        rows.append(
            {
                "fault": number,
                "words": runs[0].words,
                "runs": len(runs),
                "broken": sum(one.verdict == "BROKEN" for one in runs),
                "in_time": number not in late_faults(runs)
                and not any(one.too_late for one in runs),
                "crashes": sum(len(one.crashes) for one in runs),
                "over_limit": max(one.over_limit for one in runs),
                "bound": max(one.bound for one in runs),
                "over_bound": max(one.over_bound for one in runs),
                "answers": sum(one.answers for one in runs),
                "late": sum(one.late for one in runs),
                "worst_ms": round(max(one.worst_ms for one in runs), 1),
                "strays": sum(one.strays for one in runs),
                "terms": asdict(runs[0].terms),
                "left_after_ms": round(max(left), 1) if left else None,
                "back_after_ms": round(max(one.back_after_ms for one in runs), 1),
            }
        )
    return rows


def write_report(results: list[FaultFigures], folder: Path, *, commit: str, seconds: float) -> None:
    """Write `index.html` and `report.json`, and the tables of the docs, `report.md`."""
    rows = summary_of(results)
    content = {
        "commit": commit,
        "seeds": sorted({one.seed for one in results}),
        "seconds": round(seconds, 1),
        "faults": rows,
        "runs": [one.as_json() for one in results],
    }
    (folder / "report.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (folder / "report.md").write_text("\n".join(_tables(rows)), encoding="utf-8")
    table = "".join(_row(row) for row in rows)
    heads = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    pictures = "".join(_pictures(row, results) for row in rows)
    page = (
        f"<!doctype html><meta charset=utf-8><title>Fault campaign</title><style>{STYLE}</style>"
        f"<h1>Fault campaign</h1><p>Commit {escape(commit)}, seeds {escape(str(content['seeds']))}, "
        f"{len(results)} runs in {seconds:.0f} s.</p><table><tr>{heads}</tr>{table}</table>{pictures}"
    )
    (folder / "index.html").write_text(page, encoding="utf-8")


def _tables(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The tables of `docs/explanation/reliability.md`: faults of stores and nodes, and faults between regions."""
    between = [row for row in rows if row["fault"].startswith(BETWEEN_REGIONS)]
    apart = [row for row in rows if row not in between]
    heads = ("Fault", "What is broken", "Over", "Bound", "Broken")
    if apart:
        yield from _table((*heads, "Late", "Worst", "Left", "Back"), map(_all_cells, apart))
    if between:
        runs = ([*_first_cells(row), f"{row['runs']}"] for row in between)
        yield from _table((*heads, "Runs"), runs)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
    yield ""


def _first_cells(row: dict[str, Any]) -> list[str]:
    numbers = (f"{row[name]}" for name in ("over_limit", "bound", "broken"))
    return [row["fault"], row["words"], *numbers]


def _all_cells(row: dict[str, Any]) -> list[str]:
    late = f"{row['late']:,} of {row['answers']:,}"
    if row["terms"]["late_per_mille"] is None:
        late += " (exempt)"
    left = "–" if row["left_after_ms"] is None else f"{row['left_after_ms']:.0f} ms"
    worst, back = f"{row['worst_ms']:.0f} ms", f"{row['back_after_ms']:.0f} ms"
    return [*_first_cells(row), late, worst, left, back]


def _row(row: dict[str, Any]) -> str:
    terms = row["terms"]
    late = f"{row['late']}"
    if terms["late_per_mille"] is None:
        late += " (exempt)"
    elif terms["late_per_mille"] != USUAL.late_per_mille:
        late += f" (at most {terms['late_per_mille']} in 1,000)"
    left = "" if row["left_after_ms"] is None else f"{row['left_after_ms']:.0f} ms"
    bad = " class='n bad'" if row["broken"] else " class=n"
    bad_late = " class=n" if row["in_time"] else " class='n bad'"
    cells = [
        f"<td>{row['fault']}</td><td>{escape(row['words'])}</td><td class=n>{row['runs']}</td>",
        f"<td{bad}>{row['broken']}</td><td class=n>{row['over_limit']}</td><td class=n>{row['bound']}</td>",
        f"<td class=n>{row['answers']:,}</td><td{bad_late}>{late}</td><td class=n>{row['worst_ms']:.0f} ms</td>",
        f"<td class=n>{row['strays']}</td><td class=n>{left}</td><td class=n>{row['back_after_ms']:.0f} ms</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _pictures(row: dict[str, Any], results: list[FaultFigures]) -> str:
    runs = [one for one in results if one.fault == row["fault"]]
    shown = "".join(f"<img src='{one.fault}-{one.seed}.svg' alt='seed {one.seed}'>" for one in runs)
    findings = "".join(
        f"<li class=bad>seed {one.seed}: {escape(text)}</li>"
        for one in runs
        for text in [*one.missed, *one.findings]
    )
    why = f"<p>Its own terms: {escape(row['terms']['why'])}.</p>" if row["terms"]["why"] else ""
    return f"<h2>{row['fault']}: {escape(row['words'])}</h2>{why}<ul>{findings}</ul>{shown}"
