"""What commands for a store of rules share: opening it, editing, printing, and reporting errors.

Answers go to stdout, as text or as one line of JSON; errors go to stderr as text, and with `--json` also to stdout, so
that a program need not parse messages.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError, UsageError
from ...rules.format.problems import RulesError
from .._terminal import GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from ...clock import Clock
    from ...rules.live.change_check import RuleDiff
    from ...rules.live.editing import Editor, EditPlan
    from ...rules.model import RuleSet
    from ...rules.sources.base import HistoryEntry, Progress, RuleStore, Snapshot

PLACES: Final = """\
URL is where the rules are kept:
  rules.yaml  file:rules.yaml
  zookeeper://host:2181,host:2181/config/ratelimit/rules
  etcd://host:2379,host:2379/config/ratelimit/rules
with user:password@ before the hosts, and options after the path, such as
  ?ca_file=ca.pem&password_file=/run/secrets/rules
"""
SHOWN: Final = 20
"""How many rules a summary names."""
YELLOW: Final = "33"


def add_url(parser: argparse.ArgumentParser) -> None:
    """The place, and how to answer."""
    parser.add_argument("url", metavar="URL", help="where the rules are kept")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Every command can answer a program."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def add_edit(parser: argparse.ArgumentParser) -> None:
    """What every change takes."""
    parser.add_argument(
        "--expect", metavar="N", type=int, help="only if the store is at this revision"
    )
    parser.add_argument("--author", metavar="WHO", help="who makes the change (you@this-host)")
    parser.add_argument("--note", metavar="TEXT", default="", help="why, for the history")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    parser.add_argument(
        "--force", action="store_true", help="make the change even if the change check objects"
    )
    parser.add_argument(
        "--allow-empty", action="store_true", help="allow an empty rule set: nothing is limited"
    )
    add_json(parser)


@contextlib.contextmanager
def opened(url: str) -> Iterator[RuleStore]:
    """The store, until the block ends."""
    from ...rules.sources.opening import open_store  # noqa: PLC0415 - large, and not always needed

    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def editor(store: RuleStore, args: argparse.Namespace) -> Editor:
    """The editor that plans the change."""
    from ...rules.live.editing import Editor  # noqa: PLC0415 - large, and not always needed

    return Editor(store, look_only=args.dry_run, expected_revision=args.expect)


def answered(args: argparse.Namespace, work: Callable[[], int]) -> int:
    """Run the command; invalid rules, a conflict and a refusal are printed in full, with exit code 1."""
    from ...rules.sources.base import SourceError, VersionConflict  # noqa: PLC0415

    try:
        return work()
    except RulesError as error:
        for problem in error.problems:
            print(f"headgate: {escaped(str(problem))}", file=sys.stderr)
        _print_if(
            args, {"error": "bad rules", "problems": [_fields(one) for one in error.problems]}
        )
    except VersionConflict as error:
        print(f"headgate: {escaped(str(error))}", file=sys.stderr)
        first = None if error.head is None else _fields(error.head)
        _print_if(args, {"error": "conflict", "message": str(error), "first": first})
    except (ConfigError, SourceError) as error:
        print(f"headgate: {escaped(str(error))}", file=sys.stderr)
        _print_if(args, {"error": "failed", "message": str(error)})
    return 1


def make(args: argparse.Namespace, plan: EditPlan) -> int:
    """Make the planned change, or only show it in a dry run."""
    screen = Screen()
    insists = args.force or (args.allow_empty and plan.empties)
    if args.dry_run or (plan.changes_nothing and not insists):
        _show_plan(args, plan, screen)
        plan.require_allowed(force=args.force, allow_empty=args.allow_empty)
        _print_not_made(args, plan, screen)
        return 0
    clock: Clock = args.clock
    entry = plan.make(
        author=args.author or default_author(),
        at=clock.now_us() / 1e6,
        note=args.note,
        force=args.force,
        allow_empty=args.allow_empty,
        progress=progress_bar(),
    )
    _show_plan(args, plan, screen)  # Only now, because it reads like something that was done.
    if args.json:
        print(json.dumps(_answer(plan, entry)))
    else:
        screen.write(f"revision {entry.revision} of {escaped(str(plan.store))}")
        if entry.warning:
            screen.write(f"  {screen.paint('warning', YELLOW)} {escaped(entry.warning)}")
    return 0


def _show_plan(args: argparse.Namespace, plan: EditPlan, screen: Screen) -> None:
    if args.json:
        return
    show(plan.difference, screen)
    for warning in plan.warnings:
        screen.write(f"  {screen.paint('warning', YELLOW)} {escaped(str(warning))}")


def show(difference: RuleDiff, screen: Screen) -> None:
    """Print the added, removed and changed rules."""
    screen.write(str(difference))
    for sign, colour, rule_ids in (
        ("+", GREEN, difference.added),
        ("-", RED, difference.removed),
        ("~", YELLOW, difference.changed),
    ):
        for rule_id in rule_ids[:SHOWN]:
            screen.write(f"  {screen.paint(sign, colour)} {escaped(rule_id)}")
        if len(rule_ids) > SHOWN:
            screen.write(f"  {sign} and {len(rule_ids) - SHOWN} more")


def read_input(name: str) -> tuple[bytes, str]:
    """A rules file, or stdin for `-`, with the name that messages give it."""
    from ...rules.format.document import MAX_BYTES  # noqa: PLC0415
    from ...rules.format.file_reading import read_file  # noqa: PLC0415

    if name != "-":
        return read_file(name), name
    if sys.stdin is None:
        raise UsageError("standard input is closed; give a file instead")
    return sys.stdin.buffer.read(MAX_BYTES + 1), "stdin"


def default_author() -> str:
    """The user's name and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # A user without a name.
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def progress_bar() -> Progress | None:
    """A progress bar on stderr, on a terminal only."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return None
    began = time.monotonic()

    def show_progress(done: int, total: int) -> None:
        if total < 1 or (done == total and time.monotonic() - began < 0.5):
            return
        width = 30
        filled = width * done // total
        end = "\n" if done == total else ""
        bar = "#" * filled + "." * (width - filled)
        print(f"\r[{bar}] {done:,} of {total:,} rules", end=end, file=stream, flush=True)

    return show_progress


def moment(at: float) -> str:
    """A time that means the same everywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def table(rows: Sequence[Sequence[str]], screen: Screen) -> None:
    """Columns as wide as they need to be; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        screen.write("  ".join([*cells, row[-1]]).rstrip())


def source_json(where: str, snapshot: Snapshot, rules: RuleSet) -> dict[str, Any]:
    """Where rules come from, as a rules file may have it under `source`."""
    head = snapshot.head
    return {
        "url": where,
        "version": rules.version,
        "revision": None if head is None else head.revision,
        "author": None if head is None else escaped(head.author),
        "at": None if head is None else head.at,
    }


def entry_json(entry: HistoryEntry) -> dict[str, Any]:
    """A change, with every rule before and after."""
    return {
        "revision": entry.revision,
        "action": entry.action,
        "author": entry.author,
        "at": entry.at,
        "note": entry.note,
        "forced": entry.forced,
        "changes": [
            {"rule_id": one.rule_id, "before": _value(one.before), "after": _value(one.after)}
            for one in entry.changes
        ],
    }


def _print_not_made(args: argparse.Namespace, plan: EditPlan, screen: Screen) -> None:
    if args.json:
        print(json.dumps(_answer(plan, None)))
    elif args.dry_run:
        screen.write("nothing was written: this is a dry run")


def _answer(plan: EditPlan, entry: HistoryEntry | None) -> dict[str, Any]:
    changed = plan.difference
    return {
        "url": str(plan.store),
        "action": plan.action,
        "made": entry is not None,
        "revision": None if entry is None else entry.revision,
        "version": None if entry is None else plan.rules.version,
        "forced": entry is not None and entry.forced,
        "added": changed.added,
        "removed": changed.removed,
        "changed": changed.changed,
        "warnings": [
            *map(str, plan.warnings),
            *([entry.warning] if entry is not None and entry.warning else []),
        ],
    }


def _value(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _print_if(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(answer))
