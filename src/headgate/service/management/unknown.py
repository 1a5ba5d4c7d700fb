"""What is asked for under `/api` and is not there: told only to those who may look around."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from ..problems import NOT_FOUND, ProblemError
from .guard import guarded, needs

if TYPE_CHECKING:
    from ..desk import Desk

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def unknown_router(desk: Desk) -> APIRouter:
    """The last router under `/api`."""
    router = APIRouter(route_class=guarded(desk))

    @router.api_route(
        "/api/{rest:key}", methods=METHODS, include_in_schema=False, **needs("viewer")
    )
    async def nothing(rest: str) -> None:
        del rest
        raise ProblemError(NOT_FOUND, "the page /docs lists what there is")

    return router
