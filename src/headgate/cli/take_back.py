"""`headgate take-back`: give a dead region's rights to the others, for limits with escrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from ..errors import UsageError
from ._service import PLACES, add_service, in_path, print_result, service_of

if TYPE_CHECKING:
    import argparse

NAME: Final = "take-back"
HELP: Final = "give a dead region's rights to the others (escrow)"
EPILOG: Final = f"""\
The rights of a dead region are unused. This command gives them to the other
regions, in windows that begin five seconds later. The region's store must be
stopped: if it still admits, all regions together may exceed the limit.

--undo gives the region its rights back, in windows that begin five seconds
later. Start its store only when the windows running at that time are over.

{PLACES}
examples:
  headgate take-back west --store-is-stopped --reason 'fire in the data centre'
  headgate take-back west --undo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("region", metavar="REGION", help="the region")
    parser.add_argument(
        "--store-is-stopped", action="store_true", help="confirm that its store is stopped"
    )
    parser.add_argument("--undo", action="store_true", help="give the region its rights back")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if not args.undo and not args.store_is_stopped:
        raise UsageError(
            f"stop the store of {args.region} first, and confirm it with --store-is-stopped: "
            "if it still admits, all regions together may exceed the limit"
        )
    query = urlencode({"reason": args.reason})
    place = f"/api/regions/{in_path(args.region)}/taken-back?{query}"
    service = service_of(args)
    found = service.ask("DELETE", place) if args.undo else service.ask("PUT", place, {})
    others = [one for one in found["untold"] if one != args.region]
    if args.undo and others:
        words = f"NOT given back: {', '.join(others)} did not hear of it; do not start {args.region}, and try again"
    elif args.undo:
        words = f"{args.region} has its rights again, in windows that begin in 5 s; start it after those that run"
    else:
        words = f"the others have the rights of {args.region}, in windows that begin in 5 s"
        if others:
            words += f"; {', '.join(others)} did not hear of it, and has none of them"
    print_result(args, found, words)
    return 1 if args.undo and others else 0
