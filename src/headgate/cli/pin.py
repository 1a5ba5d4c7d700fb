"""`headgate pin`: choose the algorithm that decides adaptive limits, or let the traffic choose again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ..errors import UsageError
from ._service import (
    PLACES,
    add_service,
    in_path,
    print_json,
    print_result,
    print_table,
    seconds_of,
    service_of,
)

if TYPE_CHECKING:
    import argparse

    from ._service import Service

NAME: Final = "pin"
HELP: Final = "pin the algorithm of adaptive limits, or show which one decides"
EPILOG: Final = f"""\
Without --rule it applies to checks and to all rules without their own pin.

{PLACES}
examples:
  headgate pin token_bucket --for 2h --reason 'launch day'
  headgate pin exponential_backoff --rule login
  headgate pin --remove --rule login
  headgate pin --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM",
        nargs="?",
        help="sliding_window, token_bucket or exponential_backoff",
    )
    parser.add_argument("--rule", metavar="ID", default="*", help="only for this rule")
    parser.add_argument("--for", metavar="SPAN", dest="span", help="for how long, such as 10m")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why")
    parser.add_argument("--remove", action="store_true", help="let the traffic decide again")
    parser.add_argument("--list", action="store_true", help="show which algorithm decides, and why")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if (args.algorithm is not None) + args.remove + args.list != 1:
        raise UsageError("give an algorithm, or use --remove or --list")
    service = service_of(args)
    if args.list:
        return _list(service, args)
    what = "everything" if args.rule == "*" else args.rule
    if args.remove:
        query = urlencode({"reason": args.reason})
        choice = service.ask("DELETE", f"/api/choice/{in_path(args.rule)}?{query}")
        print_result(
            args, choice, f"the traffic decides for {what} again; {choice['algorithm']} until then"
        )
        return 0
    body: dict[str, Any] = {"algorithm": args.algorithm, "reason": args.reason}
    if args.span is not None:
        body["ttl"] = seconds_of(args.span)
    choice = service.ask("PUT", f"/api/choice/{in_path(args.rule)}", body)
    until = choice["pinned_until"]
    ends = "until it is removed" if until is None else f"until {_clock(until)}"
    print_result(args, choice, f"{choice['algorithm']} decides for {what} {ends}")
    return 0


def _list(service: Service, args: argparse.Namespace) -> int:
    found = service.get("/api/choice")
    if args.json:
        print_json(found)
        return 0
    every = [found["overall"], *found["rules"].values()]
    print_table(("RULE", "DECIDES", "SINCE", "REASON"), [row_of(one) for one in every])
    return 0


def row_of(choice: dict[str, Any]) -> tuple[str, str, str, str]:
    """A choice as a line of a table."""
    since = choice["since"]
    return (
        choice["scope"][:40],
        choice["algorithm"],
        "-" if since is None else _clock(since),
        choice["reason"][:80],
    )


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
