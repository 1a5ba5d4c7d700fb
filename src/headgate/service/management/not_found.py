"""Unknown paths and methods under `/api`: reported only to callers with a role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.routing import Match

from ..http.problems import NOT_FOUND, WHERE_TO_LOOK, ProblemError, wrong_method
from .access import guarded, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..node import Node

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def unknown_router(node: Node, known: Sequence[APIRouter]) -> APIRouter:
    """The last router under `/api`, for paths that no other router knows."""
    router = APIRouter(route_class=guarded(node))

    @router.api_route(
        "/api/{rest:key}", methods=METHODS, include_in_schema=False, **needs("viewer")
    )
    async def nothing(request: Request, rest: str) -> None:
        del rest
        offered = _methods_of(request, known)
        if offered:
            raise wrong_method(offered)
        raise ProblemError(NOT_FOUND, WHERE_TO_LOOK)

    return router


def _methods_of(request: Request, known: Sequence[APIRouter]) -> set[str]:
    """The methods that exist for the address."""
    routes = (route for router in known for route in router.routes if isinstance(route, APIRoute))
    others = (route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL)
    return {method for route in others for method in route.methods or ()}
