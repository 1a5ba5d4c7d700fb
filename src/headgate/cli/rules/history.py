"""`headgate rules history`: who changed what, and when."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from .._terminal import BOLD, GREEN, RED, Screen, escaped
from . import _online

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ...rules.sources.base import HistoryEntry

NAME: Final = "history"
HELP: Final = "show who changed which rules, and when"
EPILOG: Final = f"""\
{_online.PLACES}
examples:
  headgate rules history zookeeper://localhost
  headgate rules history rules.yaml 12
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    _online.add_url(parser)
    parser.add_argument(
        "revision", metavar="REVISION", type=int, nargs="?", help="show this one in full"
    )
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="how many (20)")
    _online.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show what was asked for."""
    return _online.answered(args, lambda: _history(args))


def _history(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit must be at least 1, not {args.limit}")
    with _online.opened(args.url) as store:
        if args.revision is None:
            entries = list(store.history(args.limit))
        else:
            entries = [one for one in store.history() if one.revision == args.revision]
            if not entries:
                raise UsageError(f"the history of {store} has no revision {args.revision}")
    if args.json:
        print(json.dumps([_online.entry_json(entry) for entry in entries]))
    elif args.revision is None:
        _write_all(entries, Screen())
    else:
        _write_one(entries[0], Screen())
    return 0


def _write_all(entries: Sequence[HistoryEntry], screen: Screen) -> None:
    if not entries:
        screen.write("there is no history: nothing was changed through Headgate yet")
        return
    rows = [("REVISION", "TIME", "AUTHOR", "ACTION", "WHAT")]
    for entry in entries:
        forced = " (forced)" if entry.forced and entry.action != "rollback" else ""
        note = f": {escaped(entry.note)}" if entry.note else ""
        rows.append(
            (
                str(entry.revision),
                _online.moment(entry.at),
                escaped(entry.author),
                entry.action + forced,
                _summary(entry) + note,
            )
        )
    _online.table(rows, screen)


def _summary(entry: HistoryEntry) -> str:
    names = [escaped(change.rule_id) for change in entry.changes]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more or "nothing"


def _write_one(entry: HistoryEntry, screen: Screen) -> None:
    screen.write(
        screen.paint(
            f"revision {entry.revision}: {entry.action} by {escaped(entry.author)}, "
            f"{_online.moment(entry.at)}",
            BOLD,
        )
    )
    if entry.note:
        screen.write(escaped(entry.note))
    for change in _online.entry_json(entry)["changes"]:
        screen.write()
        screen.write(f"rule {escaped(change['rule_id'])}")
        write_difference(change["before"], change["after"], screen)


def write_difference(before: Any, after: Any, screen: Screen) -> None:
    """Two versions of one rule, line by line."""
    for line in difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=100):
        if line.startswith(("---", "+++", "@@")):
            continue
        colour = {"+": GREEN, "-": RED}.get(line[0])
        text = escaped(line)
        screen.write(f"  {screen.paint(text, colour) if colour else text}")


def _lines(value: Any) -> list[str]:
    return [] if value is None else json.dumps(value, indent=2, ensure_ascii=False).splitlines()
