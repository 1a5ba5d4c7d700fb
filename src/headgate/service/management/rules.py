"""`GET /api/rules`, `GET /api/history`: the rules that hold, and how they came to be so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from ...rules.sources.opening import open_store
from ..problems import NOT_FOUND, ProblemError
from ..secret import redacted
from .guard import CONFLICT, guarded, needs
from .models import Shown, moment

if TYPE_CHECKING:
    from ...rules.sources.base import Entry
    from ..desk import Desk

T = TypeVar("T")
RuleId = Annotated[str, Path(min_length=1, max_length=256)]
Revision = Annotated[int, Field(ge=0, le=2**53 - 1)]
Force = Annotated[bool, Query(description="Overrule the guard.")]


class RulesShown(Shown):
    """The rules that hold on this node."""

    rules: list[dict[str, Any]]
    version: str
    revision: int
    source: str
    editable: bool
    stale_seconds: float
    problem: str | None


class EntryShown(Shown):
    """A change that was made, as the history has it."""

    revision: int
    action: str
    author: str
    at: str
    note: str
    forced: bool
    changes: list[dict[str, Any]]


class HistoryShown(Shown):
    """The newest changes, the newest first."""

    history: list[EntryShown]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["rules"], route_class=guarded(desk))

    @made.get("/rules", summary="The rules that hold", **needs("viewer"))
    async def rules(response: Response) -> RulesShown:
        """As this node follows them, with how old they are and what is wrong with newer ones, if anything is."""
        live = live_rules(desk)
        response.headers["etag"] = tag_of(live.current.version)
        return RulesShown(
            rules=[_document(rule.document) for rule in live.rules],
            version=live.current.version,
            revision=live.revision,
            source=redacted(desk.settings.rules) or "the starter rules",
            editable=bool(desk.settings.rules),
            stale_seconds=round(live.stale_seconds, 3),
            problem=live.problem,
        )

    @made.get("/rules/{rule_id}", summary="One rule", **needs("viewer"))
    async def rule(response: Response, rule_id: RuleId) -> dict[str, Any]:
        """The rule as it was written, with defaults filled in. Its `ETag` is that of all rules: who sends it back as `If-Match` changes these or none."""
        current = live_rules(desk).current
        for one in current.rules:
            if one.rule_id == rule_id:
                response.headers["etag"] = tag_of(current.version)
                found: dict[str, Any] = _document(one.document)
                return found
        raise ProblemError(NOT_FOUND, "there is no such rule")

    @made.get("/history", summary="Who changed the rules", **needs("viewer"))
    async def history(limit: Annotated[int, Query(ge=1, le=100)] = 20) -> HistoryShown:
        """The newest changes that were made through Headgate, the newest first."""
        entries = await with_store(desk, lambda store: list(store.history(limit)))
        return HistoryShown(history=[_entry(one) for one in entries])

    return made


async def with_store(desk: Desk, work: Callable[[Any], T]) -> T:
    """Do something with the place where the rules are kept, in a thread."""
    where = desk.settings.rules
    if not where:
        raise ProblemError(
            CONFLICT,
            "the starter rules are part of the program; name a file or a source in the setting 'rules'",
        )

    def run() -> T:
        store = open_store(where)
        try:
            return work(store)
        finally:
            store.close()

    return await asyncio.to_thread(run)


def live_rules(desk: Desk) -> Any:
    """The rules that are followed."""
    if desk.rules is None:
        raise ProblemError(NOT_FOUND, "this service has no rules")
    return desk.rules


def tag_of(version: str) -> str:
    """The entity tag of a set of rules: the same for everybody who has the same rules."""
    return f'"{version}"'


def _entry(entry: Entry) -> EntryShown:
    return EntryShown(
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
    """A document as plain values; what is no JSON stays text."""
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
