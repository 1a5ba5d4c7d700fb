"""Management: what people see of a service and what they set, under `/api`.

Each module is one topic: its router, and nothing else. `guard` stands before all of them (who is asking, may they, is the body
sound), `models` has the shapes. Every change goes through `changing`, which has it in the audit log before it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..desk import desk_of
from ..health import health_router
from ..metrics import metrics_router
from ..watching import watched
from . import (
    audit,
    blocks,
    counters,
    explain,
    limits,
    nodes,
    overrides,
    rule_changes,
    rules,
    traffic,
)
from .unknown import unknown_router

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ..node import Node

TOPICS = (nodes, traffic, counters, limits, overrides, blocks, rules, rule_changes, explain, audit)


def routers(node: Node) -> list[APIRouter]:
    """Health, metrics, and everything under `/api`; the last one answers for what is not there."""
    desk = desk_of(node)
    metrics = metrics_router(desk, watched(desk).all)
    return [
        health_router(desk),
        metrics,
        *(topic.router(desk) for topic in TOPICS),
        unknown_router(desk),
    ]
