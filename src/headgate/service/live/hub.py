"""The hub: builds the frames once a second, and writes the same bytes to every viewer.

Nobody waits for a viewer. One who has not taken the last frame gets no more of them; as soon as they have, they get a
new beginning (`hello`) in place of what they missed. One who takes nothing for half a minute is let go. Nothing that a
viewer sends has a meaning.

Viewers are served in small portions, with a pause between them, so that hundreds of them hold up no decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from starlette.websockets import WebSocketDisconnect, WebSocketState

from ..http.websocket import text_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.websockets import WebSocket

    from ..http.websocket import SharedFrames
    from ..security.auth import Caller

Frame = dict[str, Any]

ENDING: Final = 1001
TOO_MUCH: Final = 1009
REVOKED: Final = 4401
TOO_SLOW: Final = 4408
FULL: Final = 4429
PATIENCE: Final = 30.0
"""Seconds that a viewer has to take a frame."""
CLOSE_GRACE: Final = 1.0
"""Seconds that a disconnected viewer has to read the reason."""
MAX_RECEIVED: Final = 65_536
"""Bytes that a viewer may send, in all."""
PORTION: Final = 10
PAUSE: Final = 0.004
"""How many viewers are served in one go, and the seconds between: a thousand take less than half of one."""
log = logging.getLogger("headgate.service")


class Frames(Protocol):
    """Who knows what is going on."""

    viewers: int
    """How many watch."""

    def hello(self, caller: Caller) -> Frame:
        """The first frame of a viewer: the last fifteen minutes."""

    def tick(self) -> Frame:
        """The last second; built once a second, with or without viewers."""

    async def tables(self) -> Frame:
        """What changes less often; built every two seconds while there are viewers."""


class Viewer:
    """One viewer."""

    def __init__(self, caller: Caller, wire: SharedFrames) -> None:
        self.caller = caller
        self._wire = wire
        self._stuck_since: float | None = None
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Why the hub lets go of them."""

    def send(self, frame: bytes, begin: Callable[[Caller], bytes]) -> None:
        """Send a frame, behind a new beginning if others were missed; not to one who has no room for it."""
        now = asyncio.get_running_loop().time()
        if self._wire.unsent:
            if self._stuck_since is None:
                self._stuck_since = now
            elif now - self._stuck_since > PATIENCE:
                self.close(TOO_SLOW)
            return
        if self._stuck_since is not None:
            self._stuck_since = None
            self._wire.write(begin(self.caller))
        self._wire.write(frame)

    def close(self, code: int) -> None:
        """End it."""
        if not self.ended.done():
            self.ended.set_result(code)


class Hub:
    """All viewers, and the timer that sends them frames."""

    def __init__(
        self,
        frames: Frames,
        *,
        holds: Callable[[Caller], bool],
        draining: Callable[[], bool],
        most: int,
    ) -> None:
        self._frames = frames
        self._holds = holds
        self._draining = draining
        self._most = most
        self._viewers: set[Viewer] = set()
        self._tick: Frame | None = None
        self._tables: Frame | None = None
        self._beats = 0

    @property
    def viewers(self) -> int:
        """How many watch."""
        return len(self._viewers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make frames for as long as the block runs."""
        beat = asyncio.create_task(self._run())
        try:
            yield
        finally:
            beat.cancel()
            for viewer in self._viewers:
                viewer.close(ENDING)
            with contextlib.suppress(asyncio.CancelledError):
                await beat

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + 1, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await self.beat()
            except Exception:
                log.exception("the dashboard has missed a second")

    async def beat(self) -> None:
        """One second: build the frames, and send them to every viewer."""
        self._beats += 1
        self._frames.viewers = len(self._viewers)
        self._tick = self._frames.tick()
        if not self._viewers:
            self._tables = None
            return
        await self._send(self._tick)
        if self._beats % 2 == 0 or self._tables is None:
            self._tables = await self._frames.tables()
            await self._send(self._tables)
        draining = self._draining()
        for viewer in tuple(self._viewers):
            if not self._holds(viewer.caller):
                viewer.close(REVOKED)
            elif draining:
                viewer.close(ENDING)

    async def _send(self, frame: Frame) -> None:
        encoded = framed(frame)
        viewers = list(self._viewers)
        for at in range(0, len(viewers), PORTION):
            if at:
                await asyncio.sleep(PAUSE)
            for viewer in viewers[at : at + PORTION]:
                if not viewer.ended.done():
                    viewer.send(encoded, self._begin)

    def _begin(self, caller: Caller) -> bytes:
        return framed(self._frames.hello(caller))

    async def now(self, caller: Caller) -> dict[str, Frame]:
        """All three frames, for polling."""
        tick = self._tick or self._frames.tick()
        tables = self._tables or await self._frames.tables()
        return {"hello": self._frames.hello(caller), "tick": tick, "tables": tables}

    async def watch(self, socket: WebSocket, caller: Caller, wire: SharedFrames) -> None:
        """Serve a socket that was accepted, until one of the two sides ends it."""
        if len(self._viewers) >= self._most:
            await socket.close(FULL)
            return
        viewer = Viewer(caller, wire)
        self._viewers.add(viewer)  # Before anything is awaited: others come meanwhile.
        listening = asyncio.create_task(_listen(socket))
        try:
            for frame in (await self.now(caller)).values():
                wire.write(framed(frame))
            sides: list[asyncio.Future[Any]] = [listening, viewer.ended]
            ended, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._viewers.discard(viewer)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        code = ended.pop().result()
        if code is not None:
            await _close(socket, wire, code)


async def _close(socket: WebSocket, wire: SharedFrames, code: int) -> None:
    """Send the reason to a viewer that reads; disconnect others."""
    if code != TOO_SLOW and socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            await asyncio.wait_for(socket.close(code), CLOSE_GRACE)
            return
    wire.abort()


def framed(frame: Frame) -> bytes:
    """A frame as it is sent."""
    return text_frame(msgspec.json.encode(frame))


async def _listen(socket: WebSocket) -> int | None:
    """Hear out what has no meaning, up to a bound; `None` when the other side has left."""
    received = 0
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        received += len(message.get("text") or message.get("bytes") or b"") + 1
        if received > MAX_RECEIVED:
            return TOO_MUCH
