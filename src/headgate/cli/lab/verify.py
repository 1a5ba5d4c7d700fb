"""`headgate lab verify`: check a history against the promise that it names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import UsageError
from .._formatting import count, duration, number
from .._service import add_json, print_json
from .._terminal import GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse

    from ...lab.verdict import HistoryVerdict

NAME: Final = "verify"
HELP: Final = "check a history against the promise of its engine"
EPILOG: Final = """\
A history is a file of JSON lines, as 'headgate lab record' and the recorder of
the library write it; docs/reference/history-format.md has every field.

exit codes: 0 the promise holds, 1 it was broken, 2 nothing could be judged,
or a file cannot be used
"""
EXIT_CODES: Final = {"holds": 0, "violated": 1, "unjudged": 2}
FIGURES: Final = (
    ("over the limit", "over_limit", "units, the most in any span"),
    ("bound", "bound", "units over the limit that faults and mode may add"),
    ("over the bound", "over_bound", "units beyond what the promise allows: must be 0"),
    ("false denials", "false_denials", "denied while there was certainly room"),
    ("lost", "lost", "decisions that were acknowledged, then lost"),
    ("duplicates", "duplicates", "versions that were used twice"),
    ("replayed", "replayed", "answers compared with the algorithm's"),
    ("not replayed", "unjudged", "answers with receipts that could not be compared"),
    ("late", "late", "answers after their deadline"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("history", metavar="HISTORY", help="the file")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the most relevant key")
    parser.add_argument("--key", metavar="KEY", help="draw this key instead")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify, print and draw."""
    from ...lab.history import load_history  # noqa: PLC0415
    from ...lab.picture import picture  # noqa: PLC0415
    from ...lab.scene import Scene  # noqa: PLC0415
    from ...lab.verdict import judge  # noqa: PLC0415

    history = load_history(args.history)
    scene = Scene(history)
    verdict = judge(scene)
    if args.json:
        print_json({"history": args.history, **verdict.as_json()})
    else:
        _print_verdict(args.history, verdict)
    if args.picture is not None:
        drawn = picture(scene, verdict, args.key)
        try:
            Path(args.picture).write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{args.picture} cannot be written: {error.strerror}") from error
    return EXIT_CODES[verdict.outcome]


def _print_verdict(name: str, verdict: HistoryVerdict) -> None:
    screen, figures, promise = Screen(), verdict.figures, verdict.promise
    operations = count(figures["operations"], "operation")
    where = f"{count(verdict.keys, 'key')} in {duration(verdict.lasts_us)}"
    screen.write(escaped(f"{name}: {operations} on {where}, {count(verdict.faults, 'fault')}"))
    screen.write(escaped(f"promise of {promise.engine} {promise.mode}: {promise.words}"))
    screen.write()
    outcomes = ("allowed", "denied", "failed", "unknown")
    told = [f"{number(figures[name])} {name}" for name in outcomes if figures[name]]
    screen.write(f"  {'answers':<16}{', '.join(told) or 'none'}")
    sources = ", ".join(f"{number(many)} {source}" for source, many in figures["sources"].items())
    screen.write(f"  {'by':<16}{sources or 'nobody'}")
    for words, field, meaning in FIGURES:
        if field in figures:
            screen.write(f"  {words:<16}{number(figures[field]):<10}{meaning}")
    if "p99_us" in figures:
        times = [duration(figures[field]) for field in ("p50_us", "p99_us", "slowest_us")]
        screen.write(
            f"  {'took':<16}{times[0]} usually, 99 % at most {times[1]}, the slowest {times[2]}"
        )
    for words, field in (("utilisation", "utilisation"), ("fairness (Jain)", "jain")):
        if field in figures:
            screen.write(f"  {words:<16}{figures[field]:g}")
    screen.write()
    _print_findings(verdict, screen)


def _print_findings(verdict: HistoryVerdict, screen: Screen) -> None:
    for check, many in verdict.counts.items():
        screen.write(f"{check}: {number(many)}")
        shown = [one for one in verdict.findings if one.check == check][:5]
        for one in shown:
            at = f"line {one.line}, {(one.at_us - verdict.begin) / 1e6:.6f} s"
            screen.write(escaped(f"  {at}, key {one.key!r:.60}: {one.message}"))
        if many > len(shown):
            screen.write(f"  and {number(many - len(shown))} more")
    if verdict.outcome == "holds":
        screen.write(screen.paint("the promise holds", GREEN))
    elif verdict.outcome == "unjudged":
        screen.write(screen.paint("nothing could be judged", RED))
        screen.write(escaped(f"  {verdict.unanswered}"))
    else:
        screen.write(screen.paint("the promise is broken", RED))
