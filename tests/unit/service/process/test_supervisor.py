"""The parent of worker processes: when it starts one again, when it gives up, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headgate.service.process import supervisor
from headgate.service.process.supervisor import MAX_FALSE_STARTS, Supervisor
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_LOOKS = 100


class World:
    """Worker processes that are none, and a clock that only moves when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
        self.now = 1_000.0
        self.started: list[Worker] = []
        self.on_start: Callable[[Worker], None] = lambda _: None
        self.on_look: Callable[[], None] = lambda: None
        self._looks = 0
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(supervisor, "wait", self._look)
        settings = Settings(workers=2, engine="redis://localhost")
        self.socket = sock
        self.supervisor = Supervisor(settings, [sock], Path())
        self.supervisor._context = self
        self.supervisor.handle_signals()

    def Process(self, *, kwargs: Any, **_: Any) -> Worker:  # noqa: N802 - as multiprocessing has it
        return Worker(self, kwargs["serves_since"])

    def RawValue(self, kind: Any, value: Any) -> Any:  # noqa: N802
        return kind(value)

    def _look(self, *_: object, **__: object) -> None:
        self._looks += 1
        assert self._looks < MOST_LOOKS, "it never ends"
        self.on_look()


class Worker:
    """Lives until it is told to end."""

    sentinel = exitcode = 0

    def __init__(self, world: World, serves_since: Any) -> None:
        self.world = world
        self.serves_since = serves_since
        self.alive = False
        self.terminations = 0

    def start(self) -> None:
        assert self.world.socket.fileno() >= 0, "there is no socket any more to hand over"
        self.alive = True
        self.world.started.append(self)
        self.world.on_start(self)

    def serve(self) -> None:
        self.serves_since.value = self.world.now

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.terminations += 1
        self.alive = False

    def join(self) -> None:
        assert not self.alive


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with socket.socket() as sock:
        yield World(monkeypatch, sock)
    for number, handler in before.items():
        signal.signal(number, handler)


def get_a_signal(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_comes_while_a_worker_is_started_ends_that_one_too(world: World) -> None:
    world.on_start = get_a_signal
    assert world.supervisor.run() == 0
    assert [one.terminations for one in world.started] == [1]
    assert world.socket.fileno() < 0


def test_a_signal_that_comes_while_a_worker_is_replaced_ends_the_new_one_too(world: World) -> None:

    def die() -> None:
        if len(world.started) == 2:
            world.started[0].alive = False
            world.on_start = get_a_signal

    world.on_look = die
    assert world.supervisor.run() == 0
    assert [one.terminations for one in world.started] == [0, 1, 1]


def test_a_signal_before_the_first_worker_starts_none(world: World) -> None:
    get_a_signal()
    assert (world.supervisor.run(), world.started) == (0, [])


def test_a_second_signal_is_passed_on_as_a_second_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Worker, "terminate", lambda one: setattr(one, "terminations", one.terminations + 1)
    )

    def hear() -> None:
        if world.started[0].terminations == 2:
            for one in world.started:
                one.alive = False
        else:
            get_a_signal()

    world.on_look = hear
    assert world.supervisor.run() == 0
    assert [one.terminations for one in world.started] == [2, 2]


@pytest.mark.parametrize("took", [0, 60])
def test_workers_that_do_not_start_are_given_up_however_long_they_take(
    world: World, took: int
) -> None:
    def die() -> None:
        world.now += took
        world.started[-1].alive = False

    world.on_look = die
    assert world.supervisor.run() == 1
    assert len(world.started) == 2 + MAX_FALSE_STARTS - 1


def test_workers_that_had_served_are_replaced_however_many_die(world: World) -> None:
    def die() -> None:
        if len(world.started) > 20:
            get_a_signal()
        else:
            world.started[-1].serve()
            world.now += 60
            world.started[-1].alive = False

    world.on_look = die
    assert world.supervisor.run() == 0
