"""The commands `headgate rules …`: one module each, found by being here.

A module in this package whose name does not begin with `_` is a command, in the shape that every command
has: `NAME`, `HELP`, `add_arguments(parser)` and `run(args)`. Nothing else has to know about it; `ORDER` only says where
the help lists it.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from .._command import add_command

if TYPE_CHECKING:
    import argparse

    from .._command import Command

NAME: Final = "rules"
HELP: Final = "write, check, test, explain and share rules"
EPILOG: Final = """\
examples:
  headgate rules init rules.yaml
  headgate rules check rules.yaml

exit codes: 0 success, 1 invalid rules or the answer is no, 2 wrong usage
"""
ORDER: Final = (
    *("init", "check", "test", "explain", "schema"),
    *("list", "diff", "pull", "push", "set", "delete", "history", "rollback"),
)
"""The order of a rule's life: written, inspected, shared. Commands that are not listed come last."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every command of this package."""
    parser.epilog = EPILOG
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog=f"headgate {NAME}")
    for command in _commands():
        add_command(commands, command)


def run(args: argparse.Namespace) -> int:
    """Print the help: no command was given."""
    args.group.print_help(sys.stderr)
    return 2


def _commands() -> list[Command]:
    modules = [
        import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.name.startswith("_")
    ]
    commands = [cast("Command", module) for module in modules]
    places = {name: place for place, name in enumerate(ORDER)}
    return sorted(commands, key=lambda command: places.get(command.NAME, len(ORDER)))
