"""All topics of management, combined for one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..telemetry.collection import shared_figures
from . import (
    audit,
    blocks,
    choices,
    counters,
    explain,
    key_inspection,
    kill_switch,
    limits,
    nodes,
    overrides,
    regions,
    rule_changes,
    rules,
    simulation,
    traffic,
)
from .health import health_router
from .metrics import metrics_router
from .not_found import unknown_router

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ..node import Node

TOPICS = (
    *(
        nodes,
        regions,
        traffic,
        choices,
        counters,
        limits,
        overrides,
        blocks,
        kill_switch,
        key_inspection,
    ),
    *(rules, rule_changes, explain, simulation, audit),
)


def all_routers(node: Node) -> list[APIRouter]:
    """Health, metrics, and every topic; the last one answers for unknown paths."""
    topics = [topic.router(node) for topic in TOPICS]
    return [
        health_router(node),
        metrics_router(node, shared_figures(node).all),
        *topics,
        unknown_router(node, topics),
    ]
