"""The management API under `/api`: inspecting and changing a service.

Each module is one topic: its router, and nothing else. `access` stands before all of them (who is asking, may they, is
the body sound), `models` has the shapes. Every change goes through `audited_change`, which has it in the audit log
before it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ..node import Node


def routers(node: Node) -> list[APIRouter]:
    """Health, metrics, and everything under `/api`; the last one answers for what is not there."""
    from .routers import all_routers  # noqa: PLC0415 - health and metrics stand on this package

    return all_routers(node)
