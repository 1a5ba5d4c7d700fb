"""Random programs that run on two engines, whose answers must be equal."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ..algorithms import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from ..algorithms.adaptive import CANDIDATES
from ..charge import Charge, ChargeSet, PastCharge
from ..charge_kind import ChargeKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import ManualClock
    from ..engines.base import Engine

Program = list[tuple[Any, ...]]


def random_program(seed: int, length: int = 40) -> Program:
    """A list of steps: clock moves, requests and settlements, the same for the same seed."""
    choose = random.Random(seed)
    limits = [_random_limit(choose) for _ in range(3)]
    keys = [f"{seed}:{name}" for name in ("a", "b")]
    program: Program = []
    reserved = 0
    for number in range(length):
        limit = choose.choice(limits)
        span_us = max(limit.window_us, 1_000_000)
        program.append(("advance", _random_move(choose, span_us)))
        key, cost = choose.choice(keys), _random_cost(choose, limit.limit)
        action = choose.random()
        if action < 0.55:
            kind = choose.choice(
                [
                    ChargeKind.TAKE,
                    ChargeKind.TAKE,
                    ChargeKind.TAKE,
                    ChargeKind.PEEK,
                    ChargeKind.FORCE,
                ]
            )
            program.append(("decide", [(key, limit, min(cost, 2 * limit.limit + 1), kind)]))
        elif action < 0.6:
            ago_us = choose.choice([0, choose.randint(0, span_us), 2 * span_us, -span_us // 2])
            program.append(("past", key, limit, min(cost, 2 * limit.limit + 1), ago_us))
        elif action < 0.75:
            charges = [
                (choose.choice(keys), choose.choice(limits), choose.randint(0, 3), ChargeKind.TAKE)
                for _ in range(choose.randint(2, 3))
            ]
            program.append(("decide", charges))
        elif action < 0.85 and not isinstance(limit, CalendarWindow):
            # A store knows only the periods it was sent: settling after the clock stepped back over
            # the edge of one is the one case in which engines may differ.
            program.append(("reserve", f"{seed}:{number}", key, limit, cost))
            reserved = number
        elif action < 0.95 and reserved:
            program.append(("settle", f"{seed}:{reserved}", choose.randint(0, 2 * limit.limit)))
        else:
            program.append(("usage", key, limit))
    return program


def play_program(program: Program, engine: Engine, clock: ManualClock) -> list[Any]:
    """Play a program, and return every answer."""
    answers: list[Any] = []
    for verb, *words in program:
        match verb:
            case "advance":
                clock.advance(us=words[0])
            case "decide":
                charges = tuple(Charge(k, lim, cost, kind=kind) for k, lim, cost, kind in words[0])
                (decision,) = engine.decide([ChargeSet(charges)])
                answers.append([one.answer for one in decision.rules])
            case "past":
                key, limit, cost, ago_us = words
                came_us = max(0, clock.now_us() - ago_us)
                past = PastCharge(key, (limit,), cost, came_us, None)
                (decision,) = engine.decide([ChargeSet((past, Charge(key, limit, 0)))])
                answers.append([one.answer for one in decision.rules])
            case "reserve":
                token, key, limit, cost = words
                request = ChargeSet((Charge(key, limit, cost),), reserve_us=60_000_000, token=token)
                answers.append(engine.decide([request])[0].answer)
            case "settle":
                answers.append(engine.settle(*words))
            case "usage":
                answers.append(engine.usage(*words))
    return answers


def _random_limit(choose: random.Random) -> Limit:
    limit = choose.choice([0, 1, 2, 5, 10, 1_000])
    window_us = choose.choice([1_000, 777_777, 1_000_000, 60_000_000, 86_400_000_000])
    burst = choose.choice([1, 3, limit or 1])
    makers: list[Callable[[], Limit]] = [
        lambda: FixedWindow(limit, window_us),
        lambda: CalendarWindow(limit, calendar=Calendar("day", "Europe/Berlin")),
        lambda: SlidingWindow(limit, window_us),
        lambda: SlidingLog(limit, window_us),
        lambda: TokenBucket(limit, window_us, burst if limit else 0),
        lambda: ExponentialBackoff(limit, window_us, denials_per_level=3, max_level=3),
        lambda: Adaptive(min(limit, 1000), window_us, 0, choose.choice(CANDIDATES)),
        lambda: Concurrency(limit, window_us),
    ]
    return choose.choice(makers)()


def _random_move(choose: random.Random, window_us: int) -> int:
    """Stay, creep, jump around the window's edge, or step back."""
    return choose.choice(
        [
            0,
            0,
            1,
            choose.randint(0, window_us // 4),
            choose.randint(0, window_us // 4),
            window_us - 1,
            window_us,
            window_us + 1,
            -choose.randint(0, 2 * window_us) if choose.random() < 0.3 else 0,
        ]
    )


def _random_cost(choose: random.Random, limit: int) -> int:
    return choose.choice([0, 1, 1, 1, 2, max(1, limit // 2), limit, limit + 1])
