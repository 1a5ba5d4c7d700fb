"""What a command module offers, and how it becomes part of a command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Command(Protocol):
    """What a command module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Describe the command and its arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it, and return the exit code."""


@dataclass
class Sub:
    """A command inside a group that is too small for its own module."""

    NAME: str
    HELP: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_command(commands: argparse._SubParsersAction[Any], command: Command) -> None:
    """Give `command` a place among `commands`; `args.command` names it once it has been chosen."""
    parser = commands.add_parser(
        command.NAME,
        help=command.HELP,
        description=command.HELP[0].upper() + command.HELP[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # A new option must not change what a script's short one means.
    )
    add_common(parser)
    command.add_arguments(parser)
    # A command group has already set this to itself; the command inside it is set later and wins.
    parser.set_defaults(command=command, parser=parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """What the program and every command understand."""
    parser.add_argument(
        "--debug", action="store_true", help="show a traceback when something fails"
    )
