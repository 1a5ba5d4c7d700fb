"""`/api/live`: the feed as a WebSocket, or as one object for polling; `/api/live/ticket`, which opens it.

A handshake is refused before it is one: with 403 from another site's page, without a good ticket, or with a `Host` that
is not this service's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import WebSocketRoute

from ..http.problems import FORBIDDEN, NOT_FOUND, WRONG_HOST, ProblemError
from ..http.routes import response
from ..http.websocket import SHARED_FRAMES
from ..management.access import caller_of, guarded, needs
from ..management.models import ResponseModel
from .tickets import LIFETIME

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from ..http.websocket import SharedFrames
    from ..node import Node
    from ..security.auth import Caller
    from .hub import Hub
    from .tickets import Tickets

PROTOCOL: Final = "headgate.live.v1"
TICKET: Final = "ticket."
DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class TicketResponse(ResponseModel):
    """What opens the feed, once."""

    ticket: str
    expires_in: int = LIFETIME


def live_router(node: Node, hub: Hub, tickets: Tickets) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["live"], route_class=guarded(node))

    @made.post("/live/ticket", summary="Get a ticket for the live feed", **needs("viewer"))
    async def ticket(request: Request) -> TicketResponse:
        """A browser cannot send a token with a WebSocket: it shows this instead, as the subprotocol `ticket.…`."""
        origin = request.headers.get("origin", "")
        return TicketResponse(ticket=tickets.give(caller_of(request), origin))

    @made.get("/live", summary="The dashboard's data", **needs("viewer"))
    async def live(request: Request) -> Response:
        """The last fifteen minutes, the last second, and the tables. As a WebSocket, the same each second."""
        frames: dict[str, Any] = await hub.now(caller_of(request))
        return JSONResponse(frames)

    made.routes.append(WebSocketRoute("/api/live", _endpoint(node, hub, tickets)))
    return made


def _endpoint(node: Node, hub: Hub, tickets: Tickets) -> Any:
    async def watch(socket: WebSocket) -> None:
        try:
            caller, wire = admitted(node, socket, tickets), _wire_of(socket)
        except ProblemError as problem:
            await socket.send_denial_response(response(problem.reply()))
            return
        offered = socket.scope.get("subprotocols", ())
        await socket.accept(PROTOCOL if PROTOCOL in offered else None)
        await hub.watch(socket, caller, wire)

    return watch


def _wire_of(socket: WebSocket) -> SharedFrames:
    """What is past the application, where our own server runs it."""
    wire: SharedFrames | None = socket.scope.get(SHARED_FRAMES)
    if wire is None:
        raise ProblemError(NOT_FOUND, "WebSockets are not available; poll GET /api/live")
    return wire


def admitted(node: Node, socket: WebSocket, tickets: Tickets) -> Caller:
    """The caller that may watch over this socket; a problem if it may not."""
    headers = socket.scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not node.auth.allows_host(hosts[0]):
        raise ProblemError(WRONG_HOST, "the Host header does not name this service")
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    if len(origins) > 1 or not all(is_own(one, hosts[0].decode("latin-1")) for one in origins):
        raise ProblemError(FORBIDDEN, "the page is not from this service")
    shown = [one for one in socket.scope.get("subprotocols", ()) if one.startswith(TICKET)]
    address = "" if socket.client is None else socket.client.host
    caller = None
    if shown:
        caller = tickets.take(shown[0].removeprefix(TICKET), "".join(origins), address)
    elif not origins and not node.auth.required:
        caller = node.auth.caller(
            None, address
        )  # A program on this machine, which may do everything.
    if caller is None or not caller.may("viewer"):
        raise ProblemError(
            FORBIDDEN, "it needs a ticket from POST /api/live/ticket, which works once"
        )
    return caller


def is_own(origin: str, host: str) -> bool:
    """Whether a page of this origin came from this host.

    >>> is_own("https://limits.example", "limits.example"), is_own("http://limits.example:8080", "limits.example:8080")
    (True, True)
    >>> is_own("http://evil.example", "limits.example"), is_own("null", "limits.example")
    (False, False)
    """
    scheme, _, place = origin.lower().partition("://")
    default = DEFAULT_PORTS.get(scheme)
    return default is not None and place.removesuffix(default) == host.lower().removesuffix(default)
