"""The application: everything but the hot path, in FastAPI, on the same port.

It also has the ASGI routes of the hot endpoints, for requests that the protocol does not handle and for other ASGI
servers. All errors are sent as problems (RFC 9457), as on the hot path.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .. import __version__
from ..headers import process_time_line
from .http import openapi, pages
from .http.endpoints import Endpoints
from .http.problems import (
    BAD_REQUEST,
    BAD_VALUE,
    FAILED,
    FORBIDDEN,
    NOT_FOUND,
    UNAUTHORIZED,
    WHERE_TO_LOOK,
    WRONG_METHOD,
    ProblemError,
    ProblemType,
    wrong_method,
)
from .http.routes import check_routes, response
from .http.value_errors import of_pydantic
from .live.feed import LiveFeed
from .management import routers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .node import Node

KINDS: Final = {
    kind.status: kind
    for kind in (BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, WRONG_METHOD, BAD_VALUE)
}


def build_app(node: Node, endpoints: Endpoints | None = None) -> FastAPI:
    """The application of a node. Its lifespan starts and stops the node."""
    feed = LiveFeed(node) if node.settings.dashboard else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await node.start()
        try:
            async with nullcontext() if feed is None else feed.running():
                yield
        finally:
            await node.stop()

    app = FastAPI(
        title="Headgate",
        version=__version__,
        description=openapi.DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # Those load scripts from elsewhere; ours is at the same address.
        redoc_url=None,
        redirect_slashes=False,  # One spelling of each address.
    )
    app.router.routes.extend(check_routes(node, endpoints or Endpoints(node)))
    app.router.routes.extend(pages.page_routes(node, app))
    if feed is not None:
        app.include_router(feed.router)
    for router in routers(node):
        app.include_router(router)
    openapi.describe(app, node.settings)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(Stamp, node=node)
    return app


class Stamp:
    """Adds headers to every answer of the application: how long it took, and that its type must not be guessed."""

    def __init__(self, app: ASGIApp, node: Node) -> None:
        self._app = app
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_ns = perf_counter_ns()

        async def send_stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                line = process_time_line(perf_counter_ns() - began_ns)
                headers = [one for one in message.get("headers", ()) if one[0] != b"x-process-time"]
                message["headers"] = headers
                headers.append((b"x-process-time", line[16:-2]))
                headers.append((b"x-content-type-options", b"nosniff"))
                if self._node.draining:
                    headers.append((b"connection", b"close"))
            await send(message)

        await self._app(scope, receive, send_stamped)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    if error.status_code == WRONG_METHOD.status and "Allow" in headers:
        return response(wrong_method(headers["Allow"].split(", ")).reply())
    if error.status_code == NOT_FOUND.status:
        return response(ProblemError(NOT_FOUND, WHERE_TO_LOOK).reply())
    kind = KINDS.get(error.status_code)
    if kind is None:
        kind = ProblemType(error.status_code, f"http-{error.status_code}", str(error.detail))
    lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    return response(ProblemError(kind, str(error.detail), lines=lines.encode()).reply())


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    text, pointer = of_pydantic(error.errors()[0])
    return response(ProblemError(BAD_VALUE, text, pointer=pointer).reply())


async def _on_bug(request: Request, error: Exception) -> Response:
    log = logging.getLogger("headgate.service")
    log.error("a request failed", exc_info=error, extra={"path": request.url.path})
    return response(ProblemError(FAILED, "see the service's log").reply())
