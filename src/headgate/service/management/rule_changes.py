"""`PUT` and `DELETE /api/rules/…`, `POST /api/rollback`: changing the rules in their source.

A change is first planned against the whole resulting set. It is made only if the set is valid, if the guard has no
objections or is overruled, and if nobody was faster. The guard also considers the rules in force here: a source that
has lost its rules must not make them disappear. A caller that has read the rules before sends their `ETag` as
`If-Match`; then "faster" means since that read. Stores may block, so all of this runs in threads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from ...errors import UsageError
from ...rules.live.change_check import objections
from ...rules.live.editing import NOTHING_LEFT, Editor, EditPlan
from ..http.problems import NOT_FOUND, ProblemError
from .access import CHANGED, CONFLICT, caller_of, guarded, needs
from .audited_change import changing
from .models import Reason, RequestModel, ResponseModel
from .rules import RuleId, live_rules, loaded, tag_of, with_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...rules.sources.base import HistoryEntry
    from ..node import Node

Revision = Annotated[int, Field(ge=0, le=2**53 - 1)]
Note = Annotated[Reason, Query()]
IfMatch = Annotated[
    str | None,
    Header(description="The `ETag` of the rules that this is a change of; others are left alone."),
]
PROBLEMS = {
    202: "It is written, but not yet in force on this node; `warnings` says why",
    409: "The change check objects, another change was made first, or the rules cannot be changed",
    412: "The rules do not match `If-Match`",
}
Force = Annotated[bool, Query(description="Override the change check.")]
AllowEmpty = Annotated[
    bool, Query(description="Allow an empty rule set, so that nothing is limited.")
]


class RuleBody(RequestModel):
    """A rule, in the form of a rules file."""

    rule: dict[str, Any]
    note: Reason = ""
    force: bool = False
    """Override the change check."""


class RollbackBody(RequestModel):
    """The revision to go back to; by default, the state before the newest change."""

    revision: Revision | None = None
    note: Reason = ""
    allow_empty: bool = False
    """Allow going back to an empty set of rules."""


class EditResponse(ResponseModel):
    """A change that was made."""

    revision: int
    changed: list[str]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """The requested change."""

    action: str
    target: str
    plan: Callable[[Editor], EditPlan]
    note: str
    force: bool = False
    allow_empty: bool = False
    if_match: str | None = None
    """The version of the rules that it is based on, if given."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["rules"], route_class=guarded(node))

    @made.put("/rules/{rule_id}", summary="Add or replace a rule", **needs("admin", PROBLEMS))
    async def put(
        request: Request,
        response: Response,
        rule_id: RuleId,
        body: RuleBody,
        if_match: IfMatch = None,
    ) -> EditResponse:
        """The whole set is checked with it.

        It is in force on this node when the answer is sent, and on other nodes as soon as their source notifies them.
        """
        document = {**body.rule, "rule_id": body.rule.get("rule_id", rule_id)}
        if document["rule_id"] != rule_id:
            named = str(document["rule_id"])[:80]
            raise UsageError(
                f"rule_id is {named!r} in the body and {rule_id[:80]!r} in the address"
            )
        change = RequestedChange(
            "rule.put",
            rule_id,
            lambda one: one.set([document]),
            body.note,
            force=body.force,
            if_match=if_match,
        )
        return await _edit(node, request, response, change)

    @made.delete("/rules/{rule_id}", summary="Delete a rule", **needs("admin", PROBLEMS))
    async def delete(
        request: Request,
        response: Response,
        rule_id: RuleId,
        *,
        note: Note = "",
        force: Force = False,
        allow_empty: AllowEmpty = False,
        if_match: IfMatch = None,
    ) -> EditResponse:
        """Deleting the last rule needs `allow_empty`."""
        if all(one.rule_id != rule_id for one in live_rules(node).rules):
            raise ProblemError(NOT_FOUND, "there is no such rule")
        change = RequestedChange(
            "rule.delete",
            rule_id,
            lambda one: one.delete([rule_id]),
            note,
            force=force,
            allow_empty=allow_empty,
            if_match=if_match,
        )
        return await _edit(node, request, response, change)

    @made.post("/rollback", summary="Restore earlier rules", **needs("admin", PROBLEMS))
    async def rollback(
        request: Request, response: Response, body: RollbackBody, if_match: IfMatch = None
    ) -> EditResponse:
        """Restore the rules as of `revision`, or as before the newest change.

        The guard does not object, unless no rule would be left.
        """
        revision = body.revision
        target = "before the newest change" if revision is None else f"revision {revision}"
        change = RequestedChange(
            "rules.rollback",
            target,
            lambda one: one.rollback(revision),
            body.note,
            allow_empty=body.allow_empty,
            if_match=if_match,
        )
        return await _edit(node, request, response, change)

    return made


async def _edit(
    node: Node, request: Request, response: Response, change: RequestedChange
) -> EditResponse:
    """Plan a change, record it, make it, and wait until it is in force here."""
    plan = await with_store(node, lambda store: change.plan(Editor(store)))
    _require_match(change.if_match, plan.base)
    live = live_rules(node)
    if plan.empties:
        if not change.allow_empty:
            raise ProblemError(
                CONFLICT, f"{NOTHING_LEFT}: if that is intended, send it again with allow_empty"
            )
    elif not change.force and not plan.forced:
        against = await asyncio.to_thread(_objections, plan, live)
        if against:
            raise ProblemError(
                CONFLICT, f"{'; '.join(against)}: if that is intended, send it again with force"
            )
    author = caller_of(request).name

    def make(store: Any) -> HistoryEntry:
        return replace(plan, store=store).make(
            author=author,
            at=time.time(),
            note=change.note,
            force=change.force,
            allow_empty=change.allow_empty,
        )

    async with changing(
        node,
        request,
        change.action,
        change.target,
        before={one.rule_id: loaded(one.before) for one in plan.changes},
        after={one.rule_id: loaded(one.after) for one in plan.changes},
        reason=change.note,
    ):
        entry = await with_store(node, make)
    await asyncio.to_thread(live.refresh)
    warnings = [*map(str, plan.warnings), *filter(None, [entry.warning])]
    if live.version < entry.version or not _holds(plan, live):
        response.status_code = 202
        why = live.problem or "its source still returns older rules"
        warnings.append(f"it is written, but not yet in force on this node: {why}")
    response.headers["etag"] = tag_of(plan.rules.version)
    return EditResponse(
        revision=entry.revision,
        changed=[one.rule_id for one in plan.changes],
        warnings=warnings,
    )


def _holds(plan: EditPlan, live: Any) -> bool:
    """Whether the changed rules are in force here; others may be malformed, and keep their previous version."""
    if live.problem is None:
        return True
    here = live.current.by_id
    return all(
        here.get(one.rule_id) == (None if one.after is None else plan.rules[one.rule_id])
        for one in plan.changes
    )


def _objections(plan: EditPlan, live: Any) -> Sequence[str]:
    """The guard's objections to a plan, considering both its source and the rules in force here."""
    if plan.base == live.current.version:
        return plan.objections
    live.refresh()
    if not plan.base:
        count = len(live.rules)
        return [f"{plan.store} has no rules any more, and the {count} that hold here would be gone"]
    return plan.objections or objections(live.rules, plan.rules)


def _require_match(if_match: str | None, version: str) -> None:
    """Refuse a change that is based on another version of the rules. `*` matches any."""
    if if_match is None or (if_match.strip() == "*" and version):
        return
    tags = [tag.strip() for tag in if_match.split(",")]
    if not version or tag_of(version) not in tags:
        raise ProblemError(
            CHANGED,
            "the rules have changed since you read them, and nothing was written: read them again and retry",
            lines=f"etag: {tag_of(version)}\r\n".encode() if version else b"",
        )
