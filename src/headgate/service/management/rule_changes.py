"""`PUT` and `DELETE /api/rules/…`, `POST /api/rollback`: changing the rules, in the place that they are kept.

A change is planned first, against the whole set as it would be. It is made only if it works, if the guard has nothing against it or is
overruled, and if nobody was faster. The guard looks at the rules that hold here as well: this node would refuse what is too far from them, and a source
that has lost its rules must not make them forgotten. Who has looked at the rules and thought about them sends their `ETag` back as `If-Match`; then "faster" means:
since that look. Stores may block, so all of this runs in threads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from ...errors import UsageError
from ...rules.editing import Editor, Plan
from ...rules.guard import objections
from ..problems import NOT_FOUND, ProblemError
from .changing import changing
from .guard import CHANGED, CONFLICT, caller_of, guarded, needs
from .models import Reason, Sent, Shown
from .rules import RuleId, live_rules, loaded, tag_of, with_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...rules.sources.base import Entry
    from ..desk import Desk

Revision = Annotated[int, Field(ge=0, le=2**53 - 1)]
Note = Annotated[Reason, Query()]
IfMatch = Annotated[
    str | None,
    Header(description="The `ETag` of the rules that this is a change of; others are left alone."),
]
PROBLEMS = {
    202: "It is written, and does not hold on this node yet; `warnings` says why",
    409: "The guard objects, somebody was faster, or the rules cannot be changed",
    412: "The rules are not those that `If-Match` names",
}
Force = Annotated[bool, Query(description="Overrule the guard.")]


class RuleBody(Sent):
    """A rule, as a file would have it."""

    rule: dict[str, Any]
    note: Reason = ""
    force: bool = False
    """Overrule the guard."""


class RollbackBody(Sent):
    """Which revision to go back to; without one, before the newest change."""

    revision: Revision | None = None
    note: Reason = ""


class EditShown(Shown):
    """A change that was made."""

    revision: int
    changed: list[str]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to change."""

    action: str
    target: str
    plan: Callable[[Editor], Plan]
    note: str
    force: bool = False
    if_match: str | None = None
    """Which rules it is a change of, if that was said."""


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["rules"], route_class=guarded(desk))

    @made.put("/rules/{rule_id}", summary="Add or replace a rule", **needs("admin", PROBLEMS))
    async def put(
        request: Request,
        response: Response,
        rule_id: RuleId,
        body: RuleBody,
        if_match: IfMatch = None,
    ) -> EditShown:
        """The whole set is checked with it. It holds here when the answer comes, and on other nodes as fast as their source tells them."""
        document = {**body.rule, "rule_id": body.rule.get("rule_id", rule_id)}
        if document["rule_id"] != rule_id:
            named = str(document["rule_id"])[:80]
            raise UsageError(
                f"rule_id is {named!r} in the body and {rule_id[:80]!r} in the address"
            )
        wish = Wish(
            "rule.put", rule_id, lambda one: one.set([document]), body.note, body.force, if_match
        )
        return await _edit(desk, request, response, wish)

    @made.delete("/rules/{rule_id}", summary="Take a rule out", **needs("admin", PROBLEMS))
    async def delete(
        request: Request,
        response: Response,
        rule_id: RuleId,
        *,
        note: Note = "",
        force: Force = False,
        if_match: IfMatch = None,
    ) -> EditShown:
        """The guard objects when it would be the last one."""
        if all(one.rule_id != rule_id for one in live_rules(desk).rules):
            raise ProblemError(NOT_FOUND, "there is no such rule")
        wish = Wish(
            "rule.delete", rule_id, lambda one: one.delete([rule_id]), note, force, if_match
        )
        return await _edit(desk, request, response, wish)

    @made.post("/rollback", summary="Go back to earlier rules", **needs("admin", PROBLEMS))
    async def rollback(
        request: Request, response: Response, body: RollbackBody, if_match: IfMatch = None
    ) -> EditShown:
        """Make the rules again what they were after `revision`, or before the newest change. The guard lets it pass, unless no rule would be left."""
        revision = body.revision
        target = "before the newest change" if revision is None else f"revision {revision}"
        wish = Wish(
            "rules.rollback",
            target,
            lambda one: one.rollback(revision),
            body.note,
            if_match=if_match,
        )
        return await _edit(desk, request, response, wish)

    return made


async def _edit(desk: Desk, request: Request, response: Response, wish: Wish) -> EditShown:
    """Plan a change, note it, make it, and follow it."""
    plan = await with_store(desk, lambda store: wish.plan(Editor(store)))
    _require_match(wish.if_match, plan.base)
    live = live_rules(desk)
    if not wish.force and not plan.forced:
        against = await asyncio.to_thread(_objections, plan, live)
        if against:
            raise ProblemError(
                CONFLICT, f"{'; '.join(against)}: send it again with force, if you mean it"
            )
    author = caller_of(request).name

    def make(store: Any) -> Entry:
        return replace(plan, store=store).make(
            author=author, at=time.time(), note=wish.note, force=wish.force
        )

    async with changing(
        desk,
        request,
        wish.action,
        wish.target,
        before={one.rule_id: loaded(one.before) for one in plan.changes},
        after={one.rule_id: loaded(one.after) for one in plan.changes},
        reason=wish.note,
    ):
        entry = await with_store(desk, make)
    await asyncio.to_thread(live.refresh)
    warnings = [*map(str, plan.warnings), *filter(None, [entry.warning])]
    if live.problem is not None or live.version < entry.version:
        response.status_code = 202
        why = live.problem or "its source still tells of older rules"
        warnings.append(f"it is written, and does not hold on this node yet: {why}")
    response.headers["etag"] = tag_of(plan.rules.version)
    return EditShown(
        revision=entry.revision,
        changed=[one.rule_id for one in plan.changes],
        warnings=warnings,
    )


def _objections(plan: Plan, live: Any) -> Sequence[str]:
    """What the guard has against a plan, with regard to what its source has and to what holds here."""
    if plan.base == live.current.version:
        return plan.objections
    live.refresh()
    if not plan.base:
        count = len(live.rules)
        return [f"{plan.store} has no rules any more, and the {count} that hold here would be gone"]
    return plan.objections or objections(live.rules, plan.rules)


def _require_match(if_match: str | None, version: str) -> None:
    """Refuse a change of other rules than those that are there. `*` is any rules at all."""
    if if_match is None or (if_match.strip() == "*" and version):
        return
    tags = [tag.strip() for tag in if_match.split(",")]
    if not version or tag_of(version) not in tags:
        raise ProblemError(
            CHANGED,
            "the rules have changed since you looked at them, and nothing was written: get them again, and decide anew",
            lines=f"etag: {tag_of(version)}\r\n".encode() if version else b"",
        )
