"""The commands `headgate lab …`, which verify that limits hold. A module here is a command, as in `cli/rules`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from .._command import add_command
from . import adaptive, record, simulate, verify

if TYPE_CHECKING:
    import argparse

NAME: Final = "lab"
HELP: Final = "record, verify and simulate what a limiter does"
EPILOG: Final = """\
examples:
  headgate lab record http://127.0.0.1:8080/check --rate 100/minute --to h.jsonl
  headgate lab verify h.jsonl --picture h.svg
  headgate lab simulate --seeds 2000
  headgate lab adaptive tour --picture tour.svg

exit codes: 0 the promise holds, 1 it was broken, 2 a file cannot be used,
or nothing could be judged
"""
COMMANDS: Final = (verify, record, simulate, adaptive)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every command of this package."""
    parser.epilog = EPILOG
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog=f"headgate {NAME}")
    for command in COMMANDS:
        add_command(commands, command)


def run(args: argparse.Namespace) -> int:
    """Print the help: no command was given."""
    args.group.print_help(sys.stderr)
    return 2
