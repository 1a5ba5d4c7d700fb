"""`headgate override`: give a key another limit for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ..rate import Rate
from ._service import (
    PLACES,
    ServiceError,
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

NOT_FOUND: Final = 404
NAME: Final = "override"
HELP: Final = "give a key another limit for a while"
EPILOG: Final = f"""\
With --for it expires. With --stay the key keeps its own limit until you remove
it with --stay --remove. It applies to checks of the key; with --rule it
replaces that rule's limits for the key.

{PLACES}
examples:
  headgate override user:42 1000/minute --for 1h --reason 'load test'
  headgate override user:42 '100/minute burst 20' --stay
  headgate override ip:203.0.113.9 60/minute --rule login --for 1h
  headgate override user:42 --remove
  headgate override --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", nargs="?", help="the key")
    parser.add_argument("rate", metavar="RATE", nargs="?", help="how much, such as 1000/minute")
    parser.add_argument("--for", metavar="SPAN", dest="span", help="for how long, such as 1h")
    parser.add_argument("--stay", action="store_true", help="until it is removed")
    parser.add_argument("--rule", metavar="ID", help="the rule whose limits it replaces")
    parser.add_argument("--algorithm", metavar="NAME", help="the algorithm to count with")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the audit log")
    parser.add_argument("--remove", action="store_true", help="remove the override")
    parser.add_argument("--list", action="store_true", help="list the overrides")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if (args.key is None) is not args.list:
        raise UsageError("give a key, or use --list")
    service = service_of(args)
    if args.list:
        return _list(service, args)
    if args.rule is not None and args.stay:
        raise UsageError("--stay is for checks; put a permanent limit into the rule's overrides")
    place = f"/api/{'limits' if args.stay else 'overrides'}/{in_path(args.key)}"
    if args.remove:
        _remove(service, args, place)
        print_result(args, {"removed": True}, f"override removed for {args.key}")
        return 0
    found = service.ask("PUT", place, _body(args))
    until = "until it is removed" if found["until"] is None else f"until {found['until']}"
    by = "" if args.rule is None else f" by {args.rule}"
    print_result(args, found, f"{args.key} may do {args.rate}{by}, {until}")
    return 0


def _remove(service: Service, args: argparse.Namespace, place: str) -> None:
    """Remove the override; if there is only the other kind, say how to remove that."""
    try:
        service.ask("DELETE", place if args.rule is None else f"{place}?rule={in_path(args.rule)}")
    except ServiceError as error:
        if error.status != NOT_FOUND:
            raise
        if args.rule is not None:
            hint = ""
        elif args.stay and args.key in service.get("/api/overrides")["overrides"]:
            hint = "; to remove its temporary override, use --remove alone"
        elif not args.stay and args.key in service.get("/api/limits")["per_key_limits"]:
            hint = "; to remove its permanent limit, use --stay --remove"
        else:
            hint = ""
        raise ServiceError(f"{error}{hint}") from None


def _body(args: argparse.Namespace) -> dict[str, Any]:
    if args.rate is None:
        raise UsageError("give a rate, such as 1000/minute")
    if args.span is not None and args.stay:
        raise UsageError("use either --for, which expires, or --stay, which does not")
    if args.span is None and not args.stay:
        raise UsageError("give a duration with --for, such as --for 1h, or use --stay")
    rates = Rate.parse_all(args.rate)
    if len(rates) > 1:
        raise UsageError(
            f"a key can have only one limit, and {args.rate!r} is {len(rates)}; write a rule instead"
        )
    (rate,) = rates
    if rate.calendar is not None:
        raise UsageError("a key's own limit cannot use a calendar; write a rule instead")
    body: dict[str, Any] = {"limit": rate.limit, "window": rate.window, "reason": args.reason}
    if rate.burst is not None:
        body["burst"] = rate.burst
    if args.algorithm is not None:
        body["algorithm"] = args.algorithm
    if args.rule is not None:
        body["rule"] = args.rule
    if args.span is not None:
        body["ttl"] = seconds_of(args.span)
    return body


def _list(service: Service, args: argparse.Namespace) -> int:
    found = {
        **service.get("/api/overrides"),
        "key_limits": service.get("/api/limits")["key_limits"],
    }
    if args.json:
        print_json(found)
        return 0
    groups = [found["overrides"], found["key_limits"], *found["rule_overrides"].values()]
    rows = [
        (key[:60], one["limit"], f"{one['window_ms'] / 1000:g} s", one["rule"] or "-",
         one["until"] or "stays", one["by"], one["reason"][:60])
        for group in groups
        for key, one in group.items()
    ]  # fmt: skip
    print_table(("KEY", "LIMIT", "WINDOW", "RULE", "UNTIL", "BY", "REASON"), rows)
    return 0
