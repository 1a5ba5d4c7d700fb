"""`GET /api/rules`, `GET /api/history`: the rules in force, and who changed them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from ...rules.sources.opening import open_store
from ..http.problems import NOT_FOUND, ProblemError
from ..security.redaction import redacted
from .access import CONFLICT, guarded, needs
from .models import ResponseModel, moment

if TYPE_CHECKING:
    from ...rules.sources.base import HistoryEntry
    from ..node import Node

T = TypeVar("T")
RuleId = Annotated[str, Path(min_length=1, max_length=256)]
Revision = Annotated[int, Field(ge=0, le=2**53 - 1)]
Force = Annotated[bool, Query(description="Override the change check.")]


class RulesResponse(ResponseModel):
    """The rules in force on this node."""

    rules: list[dict[str, Any]]
    version: str
    revision: int
    source: str
    editable: bool
    stale_seconds: float
    problem: str | None
    alarm: str | None


class HistoryEntryResponse(ResponseModel):
    """A change in the history."""

    revision: int
    action: str
    author: str
    at: str
    note: str
    forced: bool
    changes: list[dict[str, Any]]


class HistoryResponse(ResponseModel):
    """The newest changes, newest first."""

    history: list[HistoryEntryResponse]


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["rules"], route_class=guarded(node))

    @made.get("/rules", summary="The rules in force", **needs("viewer"))
    async def rules(response: Response) -> RulesResponse:
        """The rules in force on this node: their age, problems of newer ones, and what looks like a mistake."""
        live = live_rules(node)
        response.headers["etag"] = tag_of(live.current.version)
        return RulesResponse(
            rules=[_document(rule.document) for rule in live.rules],
            version=live.current.version,
            revision=live.revision,
            source=redacted(node.settings.rules) or "the starter rules",
            editable=bool(node.settings.rules),
            stale_seconds=round(live.stale_seconds, 3),
            problem=live.problem,
            alarm=live.alarm,
        )

    @made.get("/rules/{rule_id}", summary="One rule", **needs("viewer"))
    async def rule(response: Response, rule_id: RuleId) -> dict[str, Any]:
        """The rule as it was written, with defaults filled in.

        Its `ETag` is that of all rules: send it as `If-Match` to change only this version.
        """
        current = live_rules(node).current
        for one in current.rules:
            if one.rule_id == rule_id:
                response.headers["etag"] = tag_of(current.version)
                found: dict[str, Any] = _document(one.document)
                return found
        raise ProblemError(NOT_FOUND, "there is no such rule")

    @made.get("/history", summary="Who changed the rules", **needs("viewer"))
    async def history(limit: Annotated[int, Query(ge=1, le=100)] = 20) -> HistoryResponse:
        """The newest changes made through Headgate, newest first."""
        entries = await with_store(node, lambda store: list(store.history(limit)))
        return HistoryResponse(history=[_entry(one) for one in entries])

    return made


async def with_store(node: Node, work: Callable[[Any], T]) -> T:
    """Run something with the rule store, in a thread."""
    where = node.settings.rules
    if not where:
        raise ProblemError(
            CONFLICT,
            "the starter rules cannot be changed; set 'rules' to a file or a source",
        )

    def run() -> T:
        store = open_store(where)
        try:
            return work(store)
        finally:
            store.close()

    return await asyncio.to_thread(run)


def live_rules(node: Node) -> Any:
    """The rules that this node follows."""
    if node.rules is None:
        raise ProblemError(NOT_FOUND, "this service has no rules")
    return node.rules


def tag_of(version: str) -> str:
    """The entity tag of a rule set: the same on every node with the same rules."""
    return f'"{version}"'


def _entry(entry: HistoryEntry) -> HistoryEntryResponse:
    return HistoryEntryResponse(
        revision=entry.revision,
        action=entry.action,
        author=entry.author,
        at=moment(round(entry.at * 1_000_000)),
        note=entry.note,
        forced=entry.forced,
        changes=[
            {"rule_id": one.rule_id, "before": loaded(one.before), "after": loaded(one.after)}
            for one in entry.changes
        ],
    )


def loaded(text: str | None) -> Any:
    """A document as plain values; invalid JSON stays text."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _document(value: Any) -> Any:
    """A rule's document in plain JSON values."""
    if isinstance(value, Mapping):
        return {key: _document(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_document(one) for one in value]
    return value
