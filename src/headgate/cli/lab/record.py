"""`headgate lab record`: call any limiter with an HTTP API, and record what it did."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from .._terminal import escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "record"
HELP: Final = "send requests to a limiter with an HTTP API, and record a history"
EPILOG: Final = """\
Only addresses on this machine are allowed, and every run ends. Placeholders in
the URL, the body and headers: {key}, {cost} and {n}, a sequence number.

examples:
  headgate lab record http://127.0.0.1:8080/check --rate 100/minute \\
      --allow-field allowed --body '{"key": "{key}"}' --to h.jsonl
  headgate lab record http://127.0.0.1/login --method GET --rate 5/minute \\
      --algorithm token_bucket --to h.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("url", metavar="URL", help="the address, such as http://127.0.0.1/")
    parser.add_argument("--to", metavar="FILE", required=True, help="the history to write")
    parser.add_argument("--rate", required=True, help="the rate it claims to enforce")
    parser.add_argument("--algorithm", metavar="NAME", help="the algorithm it claims to use")
    parser.add_argument("--mode", choices=["exact", "safe"], default="exact",
                        help="what to check; safe: early denials are allowed")  # fmt: skip
    parser.add_argument("--method", default="POST", help="the HTTP method (POST)")
    parser.add_argument("--body", metavar="TEXT", help="the request's body")
    parser.add_argument("--header", metavar="NAME:VALUE", action="append", default=[])
    parser.add_argument("--allow-field", metavar="NAME", default="",
                        help="the field of the JSON response that is true if allowed")  # fmt: skip
    parser.add_argument("--allow-status", metavar="N", default="200-299", help="such as 200,204")
    parser.add_argument("--deny-status", metavar="N", default="429", help="such as 429,503")
    parser.add_argument("--requests", metavar="N", type=int, default=1_000, help="at most (1000)")
    parser.add_argument("--seconds", metavar="S", type=float, default=10.0, help="at most (10)")
    parser.add_argument("--clients", metavar="N", type=int, default=8, help="at once (8)")
    parser.add_argument("--keys", metavar="N", type=int, default=1, help="how many (1)")
    parser.add_argument("--cost", metavar="N", type=int, default=1, help="of each request (1)")
    parser.add_argument("--pause", metavar="S", type=float, default=0.0,
                        help="how long a client waits between two requests (0)")  # fmt: skip
    parser.add_argument("--timeout", metavar="S", type=float, default=5.0, help="per answer (5)")
    parser.add_argument("--aligned", action="store_true",
                        help="windows begin at multiples of their length")  # fmt: skip
    parser.add_argument("--epsilon-us", metavar="N", type=int, default=1_000,
                        help="how coarse, or how far off, its clock may be (1000)")  # fmt: skip
    parser.add_argument("--fresh", action="store_true",
                        help="no key was used before: {key} is new in each run")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Record, and print how much was written."""
    from ...lab.black_box import BODY, Load, Target, record  # noqa: PLC0415
    from ...rate import limits_of  # noqa: PLC0415

    limits = limits_of(args.rate, args.algorithm)
    if len(limits) != 1:
        raise UsageError("a recording takes one rate; run it once per rate")
    target = Target(
        args.url,
        method=args.method.upper(),
        body=BODY if args.body is None else args.body,
        headers=dict(map(_header, args.header)),
        allow_status=_statuses(args.allow_status),
        deny_status=_statuses(args.deny_status),
        allow_field=args.allow_field,
        timeout_s=args.timeout,
    )
    name = f"key-{secrets.token_hex(6)}" if args.fresh else "key"
    load = Load(args.requests, args.seconds, args.clients, args.keys, args.cost, args.pause, name)
    header: dict[str, Any] = {
        "engine": "other",
        "mode": args.mode,
        "title": args.url,
        "aligned": args.aligned,
        "fresh": args.fresh,
        "epsilon_us": args.epsilon_us,
    }
    try:
        unanswered = record(args.to, target, load, limits[0], **header)
    except OSError as error:
        raise UsageError(f"{args.to} cannot be written: {error.strerror or error}") from error
    if unanswered:
        hint = "check the URL, --allow-field, --allow-status and --deny-status"
        print(escaped(f"headgate: warning: {unanswered}; {hint}"), file=sys.stderr)
    print(
        escaped(f"headgate: wrote {args.to}; verify it with: headgate lab verify {args.to}"),
        file=sys.stderr,
    )
    return 0


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"{text!r:.60} is not a header; write it like 'X-Name: value'")
    return name.strip(), value.strip()


def _statuses(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            raise UsageError(
                f"{text!r:.60} is not a list of statuses, such as 200-299 or 429,503"
            ) from None
        if not 100 <= low <= high <= 599:
            raise UsageError(f"{text!r:.60} has a status that does not exist")
        found.update(range(low, high + 1))
    return frozenset(found)
