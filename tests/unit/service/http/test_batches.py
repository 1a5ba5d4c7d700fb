"""Batches: which checks are one piece, what is refused, and that taking them in one go changes no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import FixedWindow, MemoryEngine
from headgate.board import Ban, BoardView, Totals
from headgate.service.front import CheckRun
from headgate.service.http import bodies
from headgate.service.http.batches import neighbours, read_batch
from headgate.service.http.bodies import CheckBody, PlainCheckBody
from headgate.service.http.endpoints import Endpoints
from headgate.service.http.problems import ProblemError
from headgate.service.node import Node
from headgate.service.settings import Settings
from headgate.testing import ManualClock


class World:
    """The endpoints of a node in memory, with a clock that stands still."""

    def __init__(self, *, max_keys: int = 1_000) -> None:
        clock = ManualClock()
        self.engine = MemoryEngine(clock=clock, max_keys=max_keys)
        self.node = Node(Settings(), engine=self.engine, clock=clock)
        self.recorder = self.node.recorder
        self.endpoints = Endpoints(self.node)

    def batch(self, *checks: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._asked("batch", {"checks": checks})["decisions"]
        return found

    def one_by_one(self, *checks: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._asked("check", check) for check in checks]

    def _asked(self, endpoint: str, body: object) -> Any:
        reply = getattr(self.endpoints, endpoint)(bodies.encode(body), False)  # noqa: FBT003
        return json.loads(reply[2])

    def count_runs(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many keys each run has that is recorded from now on."""
        sizes: list[int] = []
        record_run = self.recorder.record_run

        def counted(run: Any, took_ns: int = 0) -> None:
            sizes.append(len(run.keys))
            record_run(run, took_ns)

        monkeypatch.setattr(self.recorder, "record_run", counted)
        return sizes


def refuse_to_note(unknown: int) -> None:
    assert not unknown


def keys_of(pieces: Any) -> list[list[str]]:
    return [[piece.key] if isinstance(piece, CheckBody) else piece.keys for piece in pieces]


def test_checks_form_a_group_while_only_their_keys_differ() -> None:
    checks = [
        PlainCheckBody("a"),
        PlainCheckBody("b"),
        PlainCheckBody("a", limit=5),
        PlainCheckBody("b", limit=5),
        PlainCheckBody("c", limit=5, cost=2),
        PlainCheckBody("d"),
    ]
    assert keys_of(neighbours(checks)) == [["a", "b"], ["a", "b"], ["c"], ["d"]]
    assert list(neighbours([])) == []


@pytest.mark.parametrize(
    "second",
    ['"limit":6', '"window":9', '"algorithm":"fixed_window"', '"burst":2', '"cost":3'],
)
def test_every_field_but_the_key_ends_a_group(second: str) -> None:
    body = f'{{"checks":[{{"key":"a"}},{{"key":"b",{second}}},{{"key":"c"}}]}}'
    assert keys_of(read_batch(body.encode(), refuse_to_note)) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : ")])
def test_a_plain_body_is_read_at_once_however_it_is_spaced(separators: tuple[str, str]) -> None:
    checks = [
        {"key": f"user:{at},é", "limit": 5, "window": 1.5, "algorithm": "token_bucket", "burst": 3}
        for at in range(3)
    ]
    body = json.dumps({"checks": checks}, separators=separators, ensure_ascii=False)
    (piece,) = read_batch(body.encode(), refuse_to_note)
    assert isinstance(piece, CheckRun)
    assert len(piece.keys) == 3


@pytest.mark.parametrize(
    "twice", ['"key":"c"', '"limit":5', '"limit" : 5', '"window":60', '"algorithm":"token_bucket"']
)
def test_a_check_with_a_field_twice_is_refused_and_no_other(twice: str) -> None:
    plain = '"limit":5,"window":60,"algorithm":"token_bucket"'
    body = (
        f'{{"checks":[{{"key":"a",{plain}}},{{"key":"b",{plain},{twice}}},{{"key":"c",{plain}}}]}}'
    )
    first, second, third = read_batch(body.encode(), refuse_to_note)
    assert isinstance(second, ProblemError)
    assert "given twice" in second.detail
    assert keys_of([first, third]) == [["a"], ["c"]]


def test_unknown_fields_are_counted_wherever_they_are() -> None:
    noted: list[int] = []
    body = (
        b'{"checks":[{"key":"a","new":1},{"key":"b","newer":"x","newest":{"key":"y"}}],"more":[]}'
    )
    assert keys_of(read_batch(body, noted.append)) == [["a"], ["b"]]
    assert sum(noted) == 4


MANY: list[list[dict[str, Any]]] = [
    [{"key": "a", "limit": 2}] * 4 + [{"key": "b", "limit": 2}] * 2,
    [{"key": key, "limit": 3, "cost": cost} for cost in (1, 2, 0) for key in "aba"],
    [{"key": key, "limit": 3, "cost": 4} for key in "ab"],
    [{"key": key, "limit": 0} for key in "ab"],
    [{"key": key, "limit": 2, "algorithm": "exponential_backoff"} for key in "aaaabb"],
    [{"key": key, "burst": 2} for key in "aaab"],
    [{"key": "a"}, {"key": ""}, {"key": "a"}, {"key": "x" * 5_000}, {"key": "b"}],
    [{"key": key} for key in ("a", "", "b")],
    [{"key": key} for key in ("a", "x" * 8_193, "é" * 4_097, "x" * 8_192, "b")],
    [{"key": key} for key in ("é", '"', "\\", "\x1f", "\x7f", "\u2028", "{", "%s")],
    [{"key": key, "cost": -1} for key in "ab"],
    [{"key": key, "cost": 2**53} for key in "ab"],
    [{"key": key, "window": 0} for key in "ab"],
    [{"key": key, "algorithm": "none"} for key in "ab"],
]


@pytest.mark.parametrize("checks", MANY)
def test_a_batch_answers_what_the_same_checks_are_answered_one_by_one(
    checks: list[dict[str, Any]],
) -> None:
    together, alone = World(), World()
    for _ in range(3):  # The first batch of its kind is bound, the others are runs.
        expected = alone.one_by_one(*checks)
        for at, found in enumerate(together.batch(*checks)):
            if "error" in found:
                assert found["error"]["detail"] == expected[at]["detail"]
                pointer = found["error"]["errors"][0]["pointer"]
                assert pointer == f"#/checks/{at}" + expected[at]["errors"][0]["pointer"][1:]
            else:
                assert list(found.items()) == list(expected[at].items())  # In the same order, too.
        now_us = together.engine.clock.now_us()
        assert together.recorder.checks() == alone.recorder.checks()
        assert together.recorder.totals == alone.recorder.totals
        assert together.recorder.top() == alone.recorder.top()
        assert together.recorder.blocks(now_us) == alone.recorder.blocks(now_us)


def test_checks_that_differ_in_their_keys_are_taken_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.batch({"key": "a"}, {"key": "a", "limit": 5})
    sizes = world.count_runs(monkeypatch)
    checks = [{"key": key, **more} for more in ({}, {"limit": 5}, {"cost": 2}) for key in "abc"]
    left = [found["remaining"] for found in world.batch(*checks)]
    assert left == [97, 99, 99, *(1, 3, 3), *(94, 96, 96)]
    assert sizes == [3, 3, 3]
    assert world.recorder.totals == Totals(11, 0)


def test_a_per_key_setting_applies_to_its_key_only() -> None:
    world = World()
    world.batch({"key": "a"}, {"key": "b"})
    world.node.board.view = BoardView(
        bans={"bad": Ban(key="bad", reason="spam")}, limits={"special": FixedWindow(7, 60_000_000)}
    )
    found = world.batch({"key": "a"}, {"key": "bad"}, {"key": "special"}, {"key": "b"})
    assert [one["allowed"] for one in found] == [True, False, True, True]
    assert [one["limit"] for one in found] == [100, 100, 7, 100]
    assert found[1]["source"] == "ban"
    assert found[1]["reason"] == "spam"


def test_something_set_for_another_key_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.batch({"key": "a"})
    world.node.board.view = BoardView(bans={"bad": Ban(key="bad")})
    sizes = world.count_runs(monkeypatch)
    world.batch({"key": "a"}, {"key": "b"})
    assert sizes == [2]


def test_a_degraded_answer_says_so_and_the_others_do_not() -> None:
    world = World(max_keys=2)
    found = [world.batch({"key": "a"}, {"key": "b"}, {"key": "c"}, {"key": "a"}) for _ in range(2)]
    degraded = [[one.get("degraded", False) for one in answers] for answers in found]
    assert degraded == [[False, False, True, False]] * 2
