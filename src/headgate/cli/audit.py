"""`headgate audit`: verify the audit log of a service, and read it."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ..service.security.audit import AuditVerdict, read_entries, verify_file
from ._command import Sub, add_command
from ._service import add_json, print_json
from ._terminal import escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "audit"
HELP: Final = "verify and read the audit log of a service"
EPILOG: Final = """\
The hash chain reveals every line that was changed, removed, added or moved. It
cannot reveal that lines are missing at the end: for that, pass --head (the hash
of the newest line, as /api/audit showed it) or --entries (how many there are).

examples:
  headgate audit verify audit.jsonl
  headgate audit verify audit.jsonl --entries 1200
  headgate audit tail audit.jsonl --limit 5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog=f"headgate {NAME}")
    for command in (VERIFY, TAIL):
        add_command(commands, command)


def run(args: argparse.Namespace) -> int:
    """Print the help: no command was given."""
    args.group.print_help(sys.stderr)
    return 2


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="audit logs")
    parser.add_argument("--head", metavar="HASH", help="a hash that must be in the log")
    parser.add_argument(
        "--entries", metavar="N", type=int, default=0, help="the least number of lines"
    )
    add_json(parser)


def _verify(args: argparse.Namespace) -> int:
    found = [(file, verify_file(Path(file)), _objection(Path(file), args)) for file in args.files]
    if args.json:
        print_json({"files": [_as_json(*one) for one in found]})
    else:
        for file, verdict, objection in found:
            _print_verdict(file, verdict, objection)
    return 0 if all(verdict.ok and not objection for _, verdict, objection in found) else 1


def _objection(path: Path, args: argparse.Namespace) -> str:
    """What an intact chain may still lack at its end."""
    entries = list(read_entries(path))
    if len(entries) < args.entries:
        return f"there are {len(entries)} entries, but there should be at least {args.entries}"
    if args.head is not None and all(one["hash"] != args.head for one in entries):
        return "no entry has the hash given by --head: the end was cut off, or this is another log"
    return ""


def _print_verdict(file: str, verdict: AuditVerdict, objection: str) -> None:
    if verdict.ok and not objection:
        print(escaped(f"{file}: {verdict.entries} entries, the chain is intact"))
        return
    for line, message in verdict.breaks:
        print(escaped(f"{file}:{line}: {message}"))
    if objection:
        print(escaped(f"{file}: {objection}"))


def _as_json(file: str, verdict: AuditVerdict, objection: str) -> dict[str, Any]:
    return {
        "file": file,
        "ok": verdict.ok and not objection,
        "entries": verdict.entries,
        "head": verdict.head,
        "breaks": [one._asdict() for one in verdict.breaks],
        "objection": objection or None,
    }


def _add_tail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an audit log")
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="how many (20)")
    add_json(parser)


def _tail(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit must be at least 1, not {args.limit}")
    entries = deque(read_entries(Path(args.file)), maxlen=args.limit)
    if args.json:
        print_json({"entries": list(entries)})
        return 0
    for one in entries:
        who = one.get("who") or "-"
        reason = f": {one['reason']}" if one.get("reason") else ""
        print(escaped(f"{one.get('at')}  {who}  {one.get('action')}  {one.get('target')}{reason}"))
    return 0


VERIFY: Final = Sub("verify", "check that the log was not changed", _add_verify, _verify)
TAIL: Final = Sub("tail", "show the newest entries", _add_tail, _tail)
