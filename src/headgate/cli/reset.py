"""`headgate reset`: reset a key's usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._service import PLACES, add_service, print_json, seconds_of, service_of
from ._terminal import escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "reset"
HELP: Final = "reset a key's usage"
EPILOG: Final = f"""\
Without --rule and --window, all counts of the key are reset.

{PLACES}
examples:
  headgate reset user:42 --reason 'ticket 1234'
  headgate reset user:42 --rule login
  headgate reset user:42 --window 60s --algorithm token_bucket
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", help="the key to reset")
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
    service = service_of(args)
    found = service.ask("POST", "/api/reset", body)
    cursor = found.pop("cursor", "")
    while cursor:  # A store with many keys is searched in steps.
        more = service.ask("POST", "/api/reset", {**body, "cursor": cursor})
        found["reset"] += more["reset"]
        cursor = more["cursor"]
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
