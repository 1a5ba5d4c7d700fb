"""The feed of one node, put together."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from .frames import LiveFrames
from .hub import Hub
from .routes import live_router
from .tickets import Tickets

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from fastapi import APIRouter

    from ..node import Node


class LiveFeed:
    """Its routes, and what makes its frames while the node runs."""

    def __init__(self, node: Node) -> None:
        settings = node.settings
        # Nodes and workers that share counts must know each other's tickets; they share the store's password.
        shared = f"{settings.engine} {settings.board} {settings.namespace}"
        secret = shared if settings.shared_engine else token_hex(16)
        tickets = Tickets(node.auth, secret, folder=node.shared_dir)
        self._hub = Hub(
            LiveFrames(node),
            holds=lambda caller: tickets.holder(caller.name) is not None,
            draining=lambda: node.draining,
            most=settings.viewers,
        )
        self.router: APIRouter = live_router(node, self._hub, tickets)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Make frames for as long as the block runs."""
        return self._hub.running()
