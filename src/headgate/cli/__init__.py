"""The command `headgate`: one module per command, each a thin front end to the library.

A command module has a `NAME`, a one-line `HELP`, `add_arguments(parser)` and `run(args) -> int`; putting it into
`COMMANDS` is all it takes. Every module here is imported on every start, so a command that needs something large
imports it in `run`. A command reads the time from `args.clock`, prints its answer to stdout with `print`, and raises
its errors: this module turns them into one line on stderr and an exit code.

    0    success, or the answer is yes
    1    the answer is no, or the command failed
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
from ..rules.format.problems import RulesError
from . import (
    audit,
    ban,
    check,
    counters,
    kill_switch,
    lab,
    override,
    pin,
    rate,
    reset,
    rules,
    serve,
    status,
    take_back,
    token,
    top,
)
from ._command import add_command, add_common
from ._terminal import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import SupportsWrite

    from ..clock import Clock
    from ._command import Command

DESCRIPTION: Final = "Headgate, a rate limiter: explain, run and operate limits."
EPILOG: Final = """\
examples:
  headgate rate 100/minute burst 20
  headgate rate '1/second; 100/hour'
  headgate rate --help

exit codes: 0 success, 1 the answer is no or the command failed, 2 wrong usage
"""

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130


COMMANDS: Final[tuple[Command, ...]] = (
    *(serve, check),
    *(status, top, counters, reset, ban, override, pin, kill_switch, take_back, token, audit),
    *(rate, rules, lab),
)
"""In the order in which the help lists them."""


def main(argv: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Checked by hand, so that it also works when the arguments are invalid.
    debug = "--debug" in words[: words.index("--") if "--" in words else None]
    try:
        code = _run(words, clock)
    except BrokenPipeError:
        code = FAILED  # The reader of our output is gone and needs no message.
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
        args, unknown = parser.parse_known_args(words)
    except SystemExit as done:  # After --help and --version.
        return int(done.code or OK)
    if unknown:
        args.parser.error(_unrecognized(unknown, args.parser))
    if args.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    args.clock = SystemClock() if clock is None else clock
    command: Command = args.command
    return command.run(args)


def _unrecognized(words: list[str], parser: argparse.ArgumentParser) -> str:
    """The message for unknown arguments, with the option closest to the first."""
    first = words[0].partition("=")[0]
    names = {name.lstrip("-"): name for name in parser._option_string_actions}
    # Without dashes, which would make all of them look alike.
    near = difflib.get_close_matches(first.lstrip("-"), names, n=1)
    meant = f" (did you mean {names[near[0]]}?)" if first.startswith("-") and near else ""
    return f"unrecognized arguments: {' '.join(words)}{meant}"


def _report(error: Exception) -> int:
    """Print the error in one line, or each problem in its own line, and return the exit code."""
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
    with contextlib.suppress(OSError):  # Stderr is closed; the exit code still tells.
        for message in messages:
            print(f"headgate: {escaped(message)}", file=sys.stderr)
    return code


def _flush(code: int) -> int:
    """Flush the output, and return `code` unless that fails."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not code:
            code = FAILED if isinstance(error, BrokenPipeError) else _report(error)
        # Python flushes again on exit, which must not fail a second time.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
    return code


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises, so that only `main` prints errors and exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest command; the help lists them all."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(value, action.choices, n=1)
            nearest = f" (did you mean {near[0]!r}?)" if near else ""
            raise argparse.ArgumentError(None, f"there is no command {value!r}{nearest}")
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
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=_Parser, prog="headgate"
    )
    for command in COMMANDS:
        add_command(commands, command)
    return parser
