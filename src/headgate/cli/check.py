"""`headgate check`: check a key with a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ._formatting import duration, number
from ._service import PLACES, add_service, print_json, seconds_of, service_of
from ._terminal import GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "check"
HELP: Final = "check a key against a limit of a running service"
EPILOG: Final = f"""\
A check takes units; --cost 0 takes none. Options that you leave out come from
the service's settings.

{PLACES}
examples:
  headgate check user:42
  headgate check user:42 --limit 5 --window 60s
  headgate check user:42 --cost 0 && echo there is room

exit codes: 0 allowed, 1 denied or no answer, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", help="the key to count under")
    parser.add_argument("--limit", metavar="N", help="units per window")
    parser.add_argument("--window", metavar="SPAN", help="the window, such as 60s")
    parser.add_argument("--algorithm", metavar="NAME", help="the algorithm")
    parser.add_argument("--burst", metavar="N", help="units at once, for a token bucket")
    parser.add_argument("--cost", metavar="N", help="units to take (1)")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Ask, and tell."""
    body: dict[str, Any] = {"key": args.key}
    for name in ("limit", "burst", "cost"):
        if getattr(args, name) is not None:
            body[name] = _whole(name, getattr(args, name))
    if args.window is not None:
        body["window"] = seconds_of(args.window)
    if args.algorithm is not None:
        body["algorithm"] = args.algorithm
    answer = service_of(args).ask("POST", "/check", body)
    if args.json:
        print_json(answer)
    else:
        _show(answer)
    return 0 if answer["allowed"] else 1


def _show(answer: dict[str, Any]) -> None:
    screen = Screen()
    allowed = answer["allowed"]
    verdict = screen.paint("allowed", GREEN) if allowed else screen.paint("denied", RED)
    if answer["limit"] is None:
        found = answer.get("reason") or "no limit applies"
    else:
        left, limit = number(answer["remaining"]), number(answer["limit"])
        found = f"{left} of {limit} left, counted by {answer['algorithm']}"
    screen.write(f"{verdict}  {escaped(answer['key'])}: {escaped(found)}")
    if answer["source"] == "ban":
        screen.write(f"  banned: {escaped(answer.get('reason') or '') or 'no reason was given'}")
    if answer.get("never") and answer["source"] != "ban":
        screen.write("  It can never pass: it costs more than the limit ever allows.")
    elif not allowed and answer["retry_after"] is not None:
        screen.write(f"  again in {duration(round(answer['retry_after'] * 1_000_000))}")
    if answer.get("degraded") and answer["limit"] is not None:
        screen.write(f"  This answer is degraded, from {answer['source']}.")


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise UsageError(f"--{name} must be a whole number, not {text[:60]!r}")
    return int(text)
