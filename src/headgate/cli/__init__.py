"""The command `headgate`: one module per command, each a thin front on the library.

A command module has a `NAME`, a one-line `HELP`, `add_arguments(parser)` and `run(args) -> int`; putting
it into `COMMANDS` is all it takes. Every module here is imported on every start, so a command that needs
something large imports it in `run`. A command reads the time from `args.clock`, prints its answer
to stdout with `print`, and raises what goes wrong: this file turns errors into one line on stderr and an
exit code.

    0    fine, or the answer is yes
    1    the answer is no, or something went wrong while running
    2    wrong usage: nothing was done
    130  interrupted from the keyboard
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .. import __version__, compiled
from ..clock import SystemClock
from ..errors import HeadgateError, UsageError
from ..rules.problem import RulesError
from . import audit, ban, check, counters, override, rate, reset, rules, serve, status, token, top
from ._command import add_command, add_common
from ._terminal import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import SupportsWrite

    from ..clock import Clock
    from ._command import Command

DESCRIPTION: Final = "Headgate, a rate limiter: try out, explain and look after limits."
EPILOG: Final = """\
examples:
  headgate rate 100/minute burst 20
  headgate rate '1/second; 100/hour'
  headgate rate --help

exit codes: 0 fine, 1 the answer is no or something went wrong, 2 wrong usage
"""

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130


COMMANDS: Final[tuple[Command, ...]] = (
    *(serve, check),
    *(status, top, counters, reset, ban, override, token, audit),
    *(rate, rules),
)
"""In the order in which the help lists them."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Looked for by hand, so that it also works where the arguments are what is wrong.
    debug = "--debug" in words[: words.index("--") if "--" in words else None]
    try:
        code = _run(words, clock)
    except BrokenPipeError:
        code = FAILED  # Whoever read our output has left, and needs no message.
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence before a traceback
        if debug:
            traceback.print_exc()
        code = _report(error)
    return _flush(code)


def _run(words: list[str], clock: Clock | None) -> int:
    parser = _parser()
    try:
        args = parser.parse_args(words)
    except SystemExit as done:  # After --help and --version.
        return int(done.code or OK)
    if args.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    args.clock = SystemClock() if clock is None else clock
    command: Command = args.command
    return command.run(args)


def _report(error: Exception) -> int:
    """Say in one line what went wrong, or in one for each problem; the exit code says whose turn it is."""
    code = MISUSED if isinstance(error, UsageError) else FAILED
    if isinstance(error, RulesError):
        messages = [str(problem) for problem in error.problems]
    elif isinstance(error, HeadgateError):
        messages = [str(error)]
    elif isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        messages = [f"{where}{error.strerror or error}"]
    else:
        messages = [f"this is a bug: {type(error).__name__}: {error}; --debug shows where"]
    with contextlib.suppress(OSError):  # Nobody listens; the exit code still tells.
        for message in messages:
            print(f"headgate: {escaped(message)}", file=sys.stderr)
    return code


def _flush(code: int) -> int:
    """Get the output out, and return `code` unless that fails."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not code:
            code = FAILED if isinstance(error, BrokenPipeError) else _report(error)
        # Python flushes again when it exits. That must not fail once more.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
    return code


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises, so that `main` alone writes errors and leaves."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest command; the help lists them all."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(value, action.choices, n=1)
            nearest = f", but {near[0]!r} is one" if near else ""
            raise argparse.ArgumentError(None, f"no command is called {value!r}{nearest}")
        super()._check_value(action, value)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Help texts are plain ASCII; a stream that was closed before the start gets none."""
        if file is not None:
            file.write(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headgate",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # A new option must not change what a script's short one means.
    )
    add_common(parser)
    parser.add_argument(
        "--version",
        action="version",
        version=f"headgate {__version__}{' (compiled)' if compiled else ''}",
        help="show the version and exit",
    )
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=_Parser, prog="headgate"
    )
    for command in COMMANDS:
        add_command(commands, command)
    return parser
