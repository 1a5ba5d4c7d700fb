"""Stories: what an engine must answer, as text that a person can read and a machine can replay.

A story is a list of paragraphs. Each is a command or several, a line `----`, and the answers:

    limit bucket token_bucket 10/second burst 10

    take alice bucket 10
    take alice bucket 1
    ----
    allowed, 0 left, reset 1000000
    denied, 0 left, retry 100000, reset 1000000

Lines that start with `#` say why. Times in answers are microseconds. The commands are the methods of
`Player` below. The same stories are replayed on every engine, on a `ManualClock`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import ALGORITHMS, Adaptive, Concurrency, ExponentialBackoff, Limit
from ..charge import Charge, ChargeSet, PastCharge
from ..charge_kind import ChargeKind
from ..rate import Rate, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..clock import ManualClock
    from ..decision import Decision
    from ..engines.base import Engine

US_PER_UNIT: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
RULER: Final = "----"


@dataclass(frozen=True)
class Paragraph:
    """Some commands and the answers they must get."""

    line: int
    commands: tuple[str, ...]
    answers: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Story:
    """A named list of paragraphs."""

    name: str
    paragraphs: tuple[Paragraph, ...]


def all_stories() -> list[Story]:
    """The stories that come with Headgate, one file each."""
    folder = files(__package__) / "stories"
    texts = sorted((file.name, file.read_text("utf-8")) for file in folder.iterdir())
    return [parse_story(name.removesuffix(".txt"), text) for name, text in texts]


def parse_story(name: str, text: str) -> Story:
    """Read a story."""
    paragraphs = []
    line = 1
    for block in text.split("\n\n"):
        lines = [one for one in block.splitlines() if one.strip() and not one.startswith("#")]
        commands, answers = lines, []
        if RULER in lines:
            ruler = lines.index(RULER)
            commands, answers = lines[:ruler], lines[ruler + 1 :]
        paragraphs.append(Paragraph(line, tuple(commands), tuple(answers), block))
        line += block.count("\n") + 2
    return Story(name, tuple(paragraphs))


def replay(story: Story, engine: Engine, clock: ManualClock) -> list[tuple[Paragraph, list[str]]]:
    """Play a story on an engine; each paragraph with the answers it really got."""
    player = Player(engine, clock)
    return [(part, player.play(part.commands)) for part in story.paragraphs]


def differences(played: Iterable[tuple[Paragraph, list[str]]]) -> str:
    """The differences from the story; empty if there are none."""
    report = []
    for part, answers in played:
        if list(part.answers) != answers:
            told = "\n".join(f"  - {one}" for one in part.answers)
            got = "\n".join(f"  + {one}" for one in answers)
            commands = "\n".join(f"    {one}" for one in part.commands)
            report.append(f"line {part.line}:\n{commands}\n{told}\n{got}")
    return "\n".join(report)


def rewritten(played: Iterable[tuple[Paragraph, list[str]]]) -> str:
    """The story's text with the answers that were really given, to be reviewed as a diff."""
    blocks = []
    for part, answers in played:
        told = re.split(rf"^{RULER}$", part.text, maxsplit=1, flags=re.MULTILINE)[0].rstrip("\n")
        blocks.append("\n".join([told, RULER, *answers]) if answers else told)
    return "\n\n".join(blocks) + "\n"


class Player:
    """Carries out the commands of a story. Each public method is a command."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self._engine = engine
        self._clock = clock
        self._limits: dict[str, Limit] = {}
        self._places: dict[str, Decision] = {}
        self._reserved: dict[str, ChargeSet] = {}

    def play(self, commands: Iterable[str]) -> list[str]:
        """Carry out commands, and return the answers of those that have one."""
        answers = []
        for command in commands:
            verb, *words = command.split()
            answer = getattr(self, verb)(*words)
            if answer is not None:
                answers.append(answer)
        return answers

    def limit(self, name: str, algorithm: str, *words: str) -> None:
        """`limit NAME ALGORITHM RATE [option=value …]`: give a limit a name."""
        options = dict(word.split("=") for word in words if "=" in word)
        text = " ".join(word for word in words if "=" not in word)
        numbers = {key: int(value) for key, value in options.items() if value.isdigit()}
        if algorithm == Concurrency.name:
            self._limits[name] = Concurrency(int(text), **numbers)
        elif algorithm == ExponentialBackoff.name:
            rate = Rate.parse(text)
            self._limits[name] = ExponentialBackoff(rate.limit, rate.window_us, **numbers)
        elif algorithm == Adaptive.name:
            rate = Rate.parse(text)
            burst = rate.burst or 0
            self._limits[name] = Adaptive(rate.limit, rate.window_us, burst, **options)
        else:
            assert algorithm in ALGORITHMS, algorithm
            (self._limits[name],) = limits_of(text, algorithm)

    def wait(self, span: str) -> None:
        """`wait 1.5s`: let time pass."""
        self._clock.advance(us=_span_us(span))

    def back(self, span: str) -> None:
        """`back 1h`: step the clock back."""
        self._clock.advance(us=-_span_us(span))

    def clock(self, stamp: str) -> None:
        """`clock 2026-03-29T00:30:00Z`: set the clock."""
        from datetime import datetime  # noqa: PLC0415 - for this one command

        target_us = round(datetime.fromisoformat(stamp).timestamp()) * 1_000_000
        self._clock.advance(us=target_us - self._clock.now_us())

    def take(self, *words: str) -> str:
        """`take KEY LIMIT COST [& KEY LIMIT COST …]`: take together, or not at all."""
        return self._decide(words, ChargeKind.TAKE)

    def peek(self, *words: str) -> str:
        """`peek KEY LIMIT COST`: look, and change nothing."""
        return self._decide(words, ChargeKind.PEEK)

    def force(self, *words: str) -> str:
        """`force KEY LIMIT COST`: charge without asking."""
        return self._decide(words, ChargeKind.FORCE)

    def past(self, key: str, limit: str, cost: str, ago: str) -> str:
        """`past KEY LIMIT COST AGO`: charge without asking what was admitted elsewhere, so long ago."""
        came_us = self._clock.now_us() - _span_us(ago)
        charge = PastCharge(key, (self._limits[limit],), int(cost), came_us, None)
        return _decision_text(self._ask(ChargeSet((charge,))))

    def shadow(self, *words: str) -> str:
        """`shadow KEY LIMIT COST & KEY LIMIT COST`: the first as a shadow, the others for real."""
        first, *others = self._charges(words, ChargeKind.TAKE)
        first.kind = ChargeKind.SHADOW
        return _decision_text(self._ask(ChargeSet((first, *others))))

    def batch(self, *words: str) -> str:
        """`batch KEY LIMIT COST & …`: separate requests in one call."""
        requests = [ChargeSet((charge,)) for charge in self._charges(words, ChargeKind.TAKE)]
        return " | ".join(map(_decision_text, self._engine.decide(requests)))

    def hit(self, key: str, limit: str, cost: str) -> str:
        """`hit KEY LIMIT COST`: take on the fast path."""
        decision = self._engine.bind(self._limits[limit])(key, int(cost))
        assert not hasattr(decision, "__await__")
        return _decision_text(decision)

    def line(self, name: str, key: str, limit: str, cost: str, wait: str) -> str:
        """`line NAME KEY LIMIT COST WAIT`: stand in line for at most that long."""
        charge = Charge(key, self._limits[limit], int(cost))
        decision = self._ask(ChargeSet((charge,), wait_us=_span_us(wait)))
        self._places[name] = decision
        return _decision_text(decision)

    def leave(self, name: str) -> None:
        """`leave NAME`: give up a place in line."""
        self._engine.leave_line(self._places[name])

    def reserve(self, name: str, *words: str) -> str:
        """`reserve NAME KEY LIMIT COST [& KEY LIMIT COST …] TTL`: take together, and settle later."""
        charges = tuple(self._charges(words[:-1], ChargeKind.TAKE))
        request = ChargeSet(charges, reserve_us=_span_us(words[-1]), token=name)
        self._reserved[name] = request
        return _decision_text(self._ask(request))

    def settle(self, name: str, *actual: str) -> str:
        """`settle NAME ACTUAL…`: say what was really used, once for all charges or once for each."""
        used = [int(one) for one in actual]
        return "settled" if self._engine.settle(name, used) else "unknown"

    def withdraw(self, name: str, *words: str) -> None:
        """`withdraw NAME [KEY LIMIT COST]`: give up what was reserved, or what will be."""
        if words:
            charges = tuple(self._charges(words, ChargeKind.TAKE))
            self._reserved[name] = ChargeSet(charges, reserve_us=60_000_000, token=name)
        self._engine.withdraw(self._reserved[name])

    def hold(self, token: str, key: str, limit: str, cost: str) -> str:
        """`hold TOKEN KEY LIMIT COST`: hold slots."""
        charge = Charge(key, self._limits[limit], int(cost))
        return _decision_text(self._ask(ChargeSet((charge,), token=token)))

    def renew(self, token: str, key: str, limit: str) -> str:
        """`renew TOKEN KEY LIMIT`: hold on."""
        held = self._engine.renew(key, self._limits[limit], token)
        return "renewed" if held else "expired"

    def release(self, token: str, key: str, limit: str) -> None:
        """`release TOKEN KEY LIMIT`: let go."""
        self._engine.release(key, self._limits[limit], token)

    def usage(self, key: str, limit: str) -> str:
        """`usage KEY LIMIT`: the count."""
        used, answer = self._engine.usage(key, self._limits[limit])
        return f"{used} used, {answer[1]} left"

    def reset(self, key: str, limit: str) -> None:
        """`reset KEY LIMIT`: forget."""
        self._engine.reset(key, self._limits[limit])

    def keys(self, prefix: str = "") -> str:
        """`keys [PREFIX]`: which keys are in use, read two at a time."""
        seen, cursor = [], ""
        while True:
            entries, cursor = self._engine.list_keys(prefix, cursor, 2)
            seen += [f"{entry.key}:{entry.algorithm}" for entry in entries]
            if not cursor:
                return " ".join(sorted(seen)) or "none"

    def _decide(self, words: tuple[str, ...], kind: ChargeKind) -> str:
        return _decision_text(self._ask(ChargeSet(tuple(self._charges(words, kind)))))

    def _ask(self, request: ChargeSet) -> Decision:
        (decision,) = self._engine.decide([request])
        return decision

    def _charges(self, words: tuple[str, ...], kind: ChargeKind) -> list[Charge]:
        parts = [part.split() for part in " ".join(words).split("&")]
        return [
            Charge(key, self._limits[limit], int(cost), kind=kind) for key, limit, cost in parts
        ]


def _decision_text(decision: Decision) -> str:
    answers = [_answer_text(one.answer) for one in decision.rules]
    if len(answers) == 1:
        return answers[0]
    verdict = "allowed" if decision else "denied"
    return f"{verdict} by {decision.key}: " + " & ".join(answers)


def _answer_text(answer: Any) -> str:
    allowed, remaining, retry_after_us, reset_after_us, level = answer
    words = ["allowed" if allowed else "denied", f"{remaining} left"]
    if retry_after_us:
        words.append("never" if retry_after_us < 0 else f"retry {retry_after_us}")
    words.append(f"reset {reset_after_us}")
    if level:
        words.append(f"level {level}")
    return ", ".join(words)


def _span_us(span: str) -> int:
    found = re.fullmatch(r"(\d+)(us|ms|s|m|h)", span)
    assert found is not None, f"{span!r} is not a span such as 250ms"
    return int(found[1]) * US_PER_UNIT[found[2]]
