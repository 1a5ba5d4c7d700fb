"""`headgate lab adaptive`: see which algorithm would have decided some traffic, when, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import UsageError
from .._formatting import number
from .._service import add_json, print_json
from .._terminal import Screen, escaped

if TYPE_CHECKING:
    import argparse

    from ...adaptive.selector import Thresholds
    from ...lab.adaptive_replay import TrafficReplay
    from ...lab.traffic_shapes import Shape

NAME: Final = "adaptive"
HELP: Final = "replay traffic through an adaptive limit, and draw what decides and why"
EPILOG: Final = """\
The traffic is a shape (tour, steady, burst, abuse, or custom with --requests)
or a file of times: CSV (time,key,cost) or JSON lines ({"at": …, "key": …}).
It is replayed in virtual time, so an hour takes seconds.

examples:
  headgate lab adaptive tour --picture tour.svg
  headgate lab adaptive custom --requests 40 --seconds 60 --keys 3
  headgate lab adaptive access.csv --limit 100/minute --picture access.svg
"""
CUSTOM: Final = "custom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("traffic", metavar="TRAFFIC", nargs="?", default="tour",
                        help="tour, steady, burst, abuse, custom, or a file (tour)")  # fmt: skip
    parser.add_argument("--limit", metavar="RATE", default="100/minute",
                        help="the limit of each key (100/minute)")  # fmt: skip
    parser.add_argument("--picture", metavar="FILE.svg", help="draw it")
    parser.add_argument("--requests", metavar="N", type=float, help="per second, for custom (5)")
    parser.add_argument("--seconds", metavar="S", type=float, help="duration, for custom (30)")
    parser.add_argument("--keys", metavar="N", type=int, help="used in turn, for custom (1)")
    parser.add_argument("--cost", metavar="N", type=int, help="units per request, for custom (1)")
    parser.add_argument(
        "--enter-burst-ratio", metavar="X", type=float, help="use the bucket above this (3)"
    )
    parser.add_argument(
        "--leave-burst-ratio", metavar="X", type=float, help="until below this (1.5)"
    )
    parser.add_argument(
        "--enter-deny-rate", metavar="X", type=float, help="use backoff above this (0.5)"
    )
    parser.add_argument("--leave-deny-rate", metavar="X", type=float, help="until below this (0.3)")
    parser.add_argument("--enter-abuse-rate", metavar="N", type=float,
                        help="and above this many requests per second (20)")  # fmt: skip
    parser.add_argument("--leave-abuse-rate", metavar="N", type=float, help="until below this (10)")
    parser.add_argument("--dwell", metavar="S", type=float,
                        help="the shortest time between two switches (5)")  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Replay, print and draw."""
    from ...algorithms import Adaptive  # noqa: PLC0415
    from ...lab.adaptive_picture import picture  # noqa: PLC0415
    from ...lab.adaptive_replay import replay  # noqa: PLC0415
    from ...rate import limits_of  # noqa: PLC0415

    limits = limits_of(args.limit, Adaptive.name)
    if len(limits) != 1 or not isinstance(limits[0], Adaptive):
        raise UsageError("a replay takes one rate; run it once per rate", "limit")
    result = replay(_traffic(args), limits[0], _thresholds(args))
    if args.picture is not None:
        try:
            Path(args.picture).write_text(picture(result), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{args.picture} cannot be written: {error.strerror}") from error
    if args.json:
        print_json(result.as_json())
    else:
        _print_replay(result)
    return 0


def _traffic(args: argparse.Namespace) -> Shape:
    from ...lab.traffic_shapes import SHAPES, recorded, steady  # noqa: PLC0415

    given = {
        option: getattr(args, option)
        for option in ("requests", "seconds", "keys", "cost")
        if getattr(args, option) is not None
    }
    if args.traffic == CUSTOM:
        for option, value in given.items():
            if not value > 0:
                raise UsageError(f"--{option} must be above 0, not {value:g}")
        return steady(
            given.get("requests", 5.0),
            given.get("seconds", 30.0),
            given.get("keys", 1),
            given.get("cost", 1),
        )
    if given:
        raise UsageError(
            f"--{next(iter(given))} is for custom traffic, and {args.traffic!r:.60} is not"
        )
    return SHAPES[args.traffic]() if args.traffic in SHAPES else recorded(args.traffic)


def _thresholds(args: argparse.Namespace) -> Thresholds:
    from ...adaptive.selector import Thresholds  # noqa: PLC0415

    names = [
        f"{verb}_{what}"
        for verb in ("enter", "leave")
        for what in ("burst_ratio", "deny_rate", "abuse_rate")
    ]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.dwell is None:
        return Thresholds(**given)
    if not 0 <= args.dwell <= 86_400:
        raise UsageError(f"--dwell must be at most a day, in seconds, not {args.dwell:g}")
    return Thresholds(**given, dwell_us=round(args.dwell * 1_000_000))


def _print_replay(result: TrafficReplay) -> None:
    screen, shape = Screen(), result.shape
    screen.write(
        escaped(f"{shape.title}: {number(len(shape.arrivals))} requests in {shape.seconds:g} s")
    )
    screen.write(f"{number(result.allowed)} admitted, {number(result.denied)} denied")
    screen.write()
    for choice in result.choices:
        at = f"{choice.since_us / 1e6:g} s" if choice.epoch else "0 s"
        screen.write(f"  {at:>8}  {choice.algorithm:<20}  {choice.reason}")
    screen.write()
    alone = ", ".join(f"{name} {number(many)}" for name, many in result.alone.items())
    screen.write(f"each alone would have admitted: {alone}")
