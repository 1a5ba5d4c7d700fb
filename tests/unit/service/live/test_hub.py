"""The hub, with sockets that a test holds."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocketState

from headgate.service.live import hub as hub_module
from headgate.service.live.hub import ENDING, FULL, REVOKED, TOO_MUCH, Frame, Hub
from headgate.service.security.auth import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

ANN = Caller("ann", "viewer")


class CountedFrames:
    """Frames that say how many were made."""

    def __init__(self) -> None:
        self.ticks = 0
        self.viewers = 0

    def hello(self, caller: Caller) -> Frame:
        return {"type": "hello", "you": caller.name, "after": self.ticks}

    def tick(self) -> Frame:
        self.ticks += 1
        return {"type": "tick", "at": self.ticks}

    async def tables(self) -> Frame:
        return {"type": "tables", "at": self.ticks}


class Socket:
    """A viewer's side, and the wire to it; while it is `stuck`, what is sent waits."""

    application_state = WebSocketState.CONNECTED

    def __init__(self) -> None:
        self.got: list[Frame] = []
        self.code: int | None = None
        self.aborted = False
        self.stuck = False
        self.unsent = 0
        self.says: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def write(self, frame: bytes) -> None:
        self.unsent += len(frame) if self.stuck else 0
        at = 2 if frame[1] < 126 else 4
        self.got.append(json.loads(frame[at:]))

    def abort(self) -> None:
        self.aborted = True

    def flow(self) -> None:
        self.stuck, self.unsent = False, 0

    async def receive(self) -> dict[str, Any]:
        return await self.says.get()

    async def close(self, code: int) -> None:
        self.code = code

    @property
    def kinds(self) -> list[str]:
        return [one["type"] for one in self.got]


class Scene:
    """A hub and what it depends on."""

    def __init__(self, most: int = 10) -> None:
        self.frames = CountedFrames()
        self.holds = True
        self.draining = False
        self.hub = Hub(
            self.frames, holds=lambda _: self.holds, draining=lambda: self.draining, most=most
        )

    def watch(self, socket: Socket) -> asyncio.Task[None]:
        seen: Any = socket
        return asyncio.create_task(self.hub.watch(seen, ANN, seen))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def told(story: Callable[[Scene], Coroutine[Any, Any, None]], **options: int) -> None:
    async def run() -> None:
        await asyncio.wait_for(story(Scene(**options)), 10)

    asyncio.run(run())


def test_a_viewer_gets_a_snapshot_and_then_every_second() -> None:
    async def story(scene: Scene) -> None:
        socket = Socket()
        watching = scene.watch(socket)
        await settled()
        assert socket.kinds == ["hello", "tick", "tables"]
        for _ in range(4):
            await scene.hub.beat()
            await settled()
        assert socket.kinds[3:].count("tick") == 4
        assert "hello" not in socket.kinds[3:]
        socket.says.put_nowait({"type": "websocket.disconnect"})
        await watching
        assert scene.hub.viewers == 0

    told(story)


def test_a_slow_viewer_gets_a_new_snapshot_and_only_the_newest_second() -> None:
    async def story(scene: Scene) -> None:
        socket, quick = Socket(), Socket()
        watching = [scene.watch(socket), scene.watch(quick)]
        await settled()
        socket.stuck = True
        await scene.hub.beat()  # It still takes this one, but not as a whole.
        before = len(socket.got)
        for _ in range(6):
            await scene.hub.beat()
        ticks = [one["at"] for one in quick.got if one["type"] == "tick"]
        last = scene.frames.ticks
        assert ticks[-7:] == list(range(last - 6, last + 1))  # Nobody waits for the other one.
        assert len(socket.got) == before
        socket.flow()
        await scene.hub.beat()
        await scene.hub.beat()
        late = socket.got[before:]
        assert late[0] == {"type": "hello", "you": "ann", "after": last + 1}
        assert [one["at"] for one in late if one["type"] == "tick"] == [last + 1, last + 2]
        assert [one["type"] for one in late].count("hello") == 1
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        assert scene.hub.viewers == 0

    told(story)


def test_a_viewer_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PATIENCE", 0.0)

    async def story(scene: Scene) -> None:
        socket = Socket()
        socket.stuck = True
        watching = scene.watch(socket)
        await settled()
        for _ in range(3):
            await scene.hub.beat()
            await asyncio.sleep(0.001)  # The clock of the loop must have moved.
        await watching
        assert socket.aborted
        assert scene.hub.viewers == 0

    told(story)


def test_many_viewers_are_served_in_portions() -> None:
    async def story(scene: Scene) -> None:
        sockets = [Socket() for _ in range(35)]
        watching = [scene.watch(one) for one in sockets]
        await settled()
        await scene.hub.beat()
        assert {one.kinds.count("tick") for one in sockets} == {2}
        for one in sockets:
            one.says.put_nowait({"type": "websocket.disconnect"})
        await asyncio.gather(*watching)
        assert scene.hub.viewers == 0

    told(story, most=100)


def test_viewers_are_closed_with_a_reason_on_revocation_and_shutdown() -> None:
    async def story(scene: Scene) -> None:
        first = Socket()
        watching = scene.watch(first)
        await settled()
        scene.holds = False
        await scene.hub.beat()
        await watching
        assert first.code == REVOKED
        scene.holds, scene.draining = True, True
        second = Socket()
        watching = scene.watch(second)
        await settled()
        await scene.hub.beat()
        await watching
        assert second.code == ENDING

    told(story)


def test_viewers_and_their_input_are_limited() -> None:
    async def story(scene: Scene) -> None:
        first, second = Socket(), Socket()
        watching = scene.watch(first)
        await settled()
        await scene.watch(second)
        assert second.code == FULL
        first.says.put_nowait({"type": "websocket.receive", "text": "x" * 70_000})
        await watching
        assert first.code == TOO_MUCH

    told(story, most=1)
