"""The management API under `/api`: inspecting and changing a service.

Each module is one topic with its router. `access` comes before all of them (who is calling, with which role, is the
body valid), `models` has the bodies. Every change goes through `audited_change`, which writes it to the audit log
before it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ..node import Node


def routers(node: Node) -> list[APIRouter]:
    """Health, metrics, and everything under `/api`; the last one answers for unknown paths."""
    from .routers import all_routers  # noqa: PLC0415 - health and metrics import this package

    return all_routers(node)
