"""`headgate counters`: what keys have used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ._service import PLACES, add_service, print_json, print_table, service_of

if TYPE_CHECKING:
    import argparse

NAME: Final = "counters"
HELP: Final = "show what keys have used"
UNKNOWN: Final = "?"
"""Shown if the limit that a key was last counted by is unknown."""
EPILOG: Final = f"""\
{PLACES}
examples:
  headgate counters
  headgate counters --prefix user: --limit 1000 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("--prefix", metavar="TEXT", help="only keys with this prefix")
    parser.add_argument("--rule", metavar="ID", help="only counts of this rule")
    parser.add_argument("--limit", metavar="N", type=int, default=50, help="how many (50)")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Show them."""
    if args.limit < 1:
        raise UsageError(f"--limit must be at least 1, not {args.limit}")
    service = service_of(args)
    found: list[dict[str, Any]] = []
    cursor = ""
    while len(found) < args.limit:
        page = service.get(
            "/api/counters",
            cursor=cursor,
            prefix=args.prefix,
            rule=args.rule,
            limit=min(1_000, args.limit - len(found)),
        )
        found += page["counters"]
        cursor = page["cursor"]
        if not cursor:
            break
    if args.json:
        print_json({"counters": found[: args.limit], "more": bool(cursor)})
        return 0
    print_table(
        ("KEY", "RULE", "COUNT", "LIMIT", "LEFT", "WINDOW", "ALGORITHM"),
        [
            (
                one["key"][:60],
                one["rule"] or "-",
                one["count"],
                UNKNOWN if one["limit"] is None else one["limit"],
                UNKNOWN if one["remaining"] is None else one["remaining"],
                f"{one['window_ms'] / 1000:g} s",
                one["algorithm"],
            )
            for one in found[: args.limit]
        ],
    )
    if cursor:
        print("... and more; --limit shows more of them")
    return 0
