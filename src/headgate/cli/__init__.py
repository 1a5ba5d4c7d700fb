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
import difflib
import os
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, Protocol

from .. import __version__
from ..clock import SystemClock
from ..errors import UsageError
from . import rate
from ._terminal import escaped, is_ascii_only, to_ascii

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock

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


class Command(Protocol):
    """What a command module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Describe the command and its arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it, and return the exit code."""


COMMANDS: Final[tuple[Command, ...]] = (rate,)
"""In the order in which the help lists them."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Looked for by hand, so that it also works where the arguments are what is wrong.
    debug = "--debug" in words[: words.index("--") if "--" in words else None]
    try:
        try:
            return _run(words, clock)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence before a traceback
        if debug:
            traceback.print_exc()
        return _report(error)


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
    """Say in one line what went wrong; the exit code says whose turn it is."""
    if isinstance(error, UsageError):
        message, code = str(error), MISUSED
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        message, code = f"{where}{error.strerror or error}", FAILED
        if error.filename is None:
            _forget_stdout()  # It may be the output itself that failed: a full disk, for one.
    elif type(error).__module__.partition(".")[0] == __package__.partition(".")[0]:
        message, code = str(error), FAILED
    else:
        message = f"this is a bug: {type(error).__name__}: {error}; --debug shows where"
        code = FAILED
    print(f"headgate: {escaped(message)}", file=sys.stderr)
    return code


def _forget_stdout() -> None:
    """Point stdout at nothing, or Python would fail once more when it flushes at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass  # No file stands behind it, so nothing is flushed at exit either.


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises, so that `main` alone writes errors and leaves."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest command instead of listing all of them."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(value, action.choices, n=1)
            remedy = f"; did you mean {near[0]!r}?" if near else ""
            raise argparse.ArgumentError(None, f"no command is called {value!r}{remedy}")
        super()._check_value(action, value)

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        stream = file or sys.stdout
        if message and stream is not None:
            stream.write(to_ascii(message) if is_ascii_only(stream) else message)


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--debug", action="store_true", help="show a traceback when something fails"
    )
    parser = _Parser(
        prog="headgate",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=layout,
        parents=[common],
        allow_abbrev=False,  # A new option must not change what a script's short one means.
    )
    parser.add_argument("--version", action="version", version=f"headgate {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=_Parser, prog="headgate"
    )
    for command in COMMANDS:
        one = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.HELP[0].upper() + command.HELP[1:] + ".",
            formatter_class=layout,
            parents=[common],
            allow_abbrev=False,
        )
        command.add_arguments(one)
        one.set_defaults(command=command)
    return parser
