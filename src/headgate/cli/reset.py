"""`headgate reset`: forget what a key has used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._service import PLACES, add_service, print_json, seconds_of, service_of
from ._terminal import escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "reset"
HELP: Final = "forget what a key has used"
EPILOG: Final = f"""\
Without --rule and --window, everything that is found of the key is forgotten.

{PLACES}
examples:
  headgate reset user:42 --reason 'ticket 1234'
  headgate reset user:42 --rule login
  headgate reset user:42 --window 60s --algorithm token_bucket
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", help="whose count is forgotten")
    parser.add_argument("--rule", metavar="ID", help="only what this rule has counted")
    parser.add_argument("--window", metavar="SPAN", help="only this window, such as 60s")
    parser.add_argument("--algorithm", metavar="NAME", help="and only this algorithm")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the audit log")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Forget it."""
    body: dict[str, Any] = {"key": args.key, "reason": args.reason}
    if args.rule is not None:
        body["rule"] = args.rule
    if args.window is not None:
        body["window"] = seconds_of(args.window)
    if args.algorithm is not None:
        body["algorithm"] = args.algorithm
    found = service_of(args).ask("POST", "/api/reset", body)
    if args.json:
        print_json(found)
        return 0
    if not found["reset"]:
        print(escaped(f"nothing was counted for {args.key}"))
    for one in found["reset"]:
        rule = f"rule {one['rule']}, " if one["rule"] else ""
        print(
            escaped(
                f"forgotten: {args.key}, {rule}{one['algorithm']}, {one['window_ms'] / 1000:g} s"
            )
        )
    return 0
