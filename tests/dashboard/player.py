"""A server that plays states of the dashboard: the real page and policy, a real WebSocket, invented frames.

With it every state can be looked at, also those that a real service reaches only in trouble. To look at one by hand:
`.venv/bin/python -m tests.dashboard.player degraded`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

from headgate.service.http.dashboard import dashboard_routes
from headgate.service.live.parts import parts_of
from headgate.service.live.rows import levels_of, node_row, rule_row, tests_of
from tests.dashboard import states
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

    from tests.dashboard.states import State

TOKEN = "right-token"  # noqa: S105 - of a service that plays


def tick_of(state: State) -> states.Frame:
    """The last second of a state, with the words that the service adds."""
    tick = state.tick
    tests = tests_of(tick["traffic"], states.THRESHOLDS)
    return tick | {"parts": parts_of(tick), "tests": tests, "levels": levels_of(tick)}


def tables_of(state: State) -> states.Frame:
    """The tables of a state, with the words that the service adds."""
    tables, alone = state.tables, state.tick["seen"] == "node"
    nodes = [node_row(one, alone=alone) for one in tables["nodes"]["rows"]]
    rules = [rule_row(one) for one in tables["rules"]["rows"]]
    return tables | {
        "nodes": tables["nodes"] | {"rows": nodes},
        "rules": tables["rules"] | {"rows": rules},
        "checks": rule_row(tables["checks"]),
    }


class Player:
    """What is being played, and to whom."""

    def __init__(self, port: int, state: State) -> None:
        self.url = f"http://{HOST}:{port}"
        self.address = (HOST, port)
        self.state = state
        self.silent = False
        self.away = False
        self.patience = 10
        """How many more wrong tokens are taken."""
        self.viewers: set[WebSocket] = set()
        self.loop: asyncio.AbstractEventLoop | None = None

    def play(self, make: Callable[[float], State]) -> None:
        """Show this state from now on, to everybody who watches."""
        self.silent = self.away = False
        self.state = make(time.time())
        self._run(self._close_all(4401) if self.state.needs_token else self._send_all(hello=True))

    def fall_silent(self) -> None:
        """Keep the connections and say nothing."""
        self.silent = True

    def go_away(self) -> None:
        """End all connections, and take no new ones."""
        self.away = True
        self._run(self._close_all(1011))

    def _run(self, work: Any) -> None:
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _close_all(self, code: int) -> None:
        for viewer in tuple(self.viewers):
            with contextlib.suppress(RuntimeError):
                await viewer.close(code)

    async def _send_all(self, *, hello: bool) -> None:
        await asyncio.gather(*(self._send(viewer, hello=hello) for viewer in tuple(self.viewers)))

    async def _send(self, viewer: WebSocket, *, hello: bool) -> None:
        if self.silent:
            return
        with contextlib.suppress(RuntimeError):
            if hello:
                await viewer.send_text(json.dumps(self.state.hello))
            await viewer.send_text(json.dumps(tick_of(self.state)))
            await viewer.send_text(json.dumps(tables_of(self.state)))

    async def tick(self) -> None:
        """Go on, second by second."""
        self.loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)  # The feed goes by the second.
            self.state = states.advanced(self.state, time.time())
            await self._send_all(hello=False)

    def application(self) -> Starlette:
        """The routes that the page asks."""

        async def ticket(request: Request) -> Response:
            if self.away:
                return _problem(503, "store-unavailable", "away")
            shown = request.headers.get("authorization")
            if self.state.needs_token and shown != f"Bearer {TOKEN}":
                if self.patience <= 0:
                    told = "wait, and use the right token"
                    return _problem(429, "too-many-guesses", told, {"Retry-After": "42"})
                return _problem(
                    401, "unauthorized", "send the header 'Authorization: Bearer TOKEN'"
                )
            return JSONResponse({"ticket": "played", "expires_in": 10})

        async def live(viewer: WebSocket) -> None:
            await viewer.accept("headgate.live.v1")
            self.viewers.add(viewer)
            try:
                await self._send(
                    viewer, hello=False
                )  # A second may end before the beginning is told.
                await asyncio.sleep(0.05)  # And the page may draw before it knows more.
                await self._send(viewer, hello=True)
                while (await viewer.receive())["type"] != "websocket.disconnect":
                    pass
            finally:
                self.viewers.discard(viewer)

        async def key(request: Request) -> Response:
            found = self.state.keys.get(request.path_params["key"])
            return JSONResponse(found) if found else _problem(404, "not-found", "no such key")

        async def health(_: Request) -> Response:
            return JSONResponse({"status": "ok"})

        return Starlette(
            routes=[
                *dashboard_routes(),
                Route("/api/live/ticket", ticket, methods=["POST"]),
                WebSocketRoute("/api/live", live),
                Route("/api/keys/{key:path}", key),
                Route("/health", health),
            ]
        )


def _problem(
    status: int, code: str, detail: str, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse({"status": status, "code": code, "detail": detail}, status, headers)


@contextlib.contextmanager
def playing(
    make: Callable[[float], State] = states.steady, *, away: bool = False
) -> Iterator[Player]:
    """A player on a free port, in a thread of its own."""
    player = Player(free_ports(1)[0], make(time.time()))
    player.away = away
    host, port = player.address
    config = uvicorn.Config(
        player.application(), host=host, port=port, log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        ticking = asyncio.create_task(player.tick())
        await server.serve()
        ticking.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="player")
    thread.start()
    try:
        deadline = time.monotonic() + 15
        while not (server.started and player.loop):
            assert time.monotonic() < deadline, "the player does not start"
            time.sleep(0.01)  # A thread that starts; there is no clock to move.
        yield player
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)


if __name__ == "__main__":
    with playing(getattr(states, sys.argv[1] if sys.argv[1:] else "steady")) as shown:
        sys.stdout.write(f"{shown.url}\n")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
