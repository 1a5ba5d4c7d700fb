"""Every topic of management, put together for one node."""

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


def all_routers(node: Node) -> list[APIRouter]:
    """Health, metrics, and every topic; the last one answers for what is not there."""
    desk = desk_of(node)
    topics = [topic.router(desk) for topic in TOPICS]
    return [
        health_router(desk),
        metrics_router(desk, watched(desk).all),
        *topics,
        unknown_router(desk, topics),
    ]
