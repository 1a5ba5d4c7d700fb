"""`POST /api/simulate`: real traffic, to watch a limit at work.

It goes through the same path as checks, so it is in all figures, and it may change which algorithm decides for
everyone. The results are streamed, one line per second and per switch. It ends by itself, and within a tenth of a
second after its reader disconnects.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from pydantic import Field
from starlette.responses import StreamingResponse

from ...decision import Decision
from ...engines.base import Run
from ...errors import EngineError
from ..front import Check, Front, Pending, limit_of
from ..http.bodies import answer_of
from ..http.problems import ProblemError
from ..telemetry.denied_keys import limit_in_words
from .access import CONFLICT, guarded, needs
from .models import RequestModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from ..front import BatchResult
    from ..node import Node
    from ..security.auth import Caller
    from ..security.tokens import Role

STEP: Final = 0.1
"""Seconds between two batches."""
LISTEN: Final = 5.0
"""How long a burst is watched after it was sent, in seconds."""
AT_ONCE: Final = 4
"""How many simulations may run on a node at a time."""
MEDIA_TYPE: Final = "application/x-ndjson"


class SimulateBody(RequestModel):
    """What to send. The numbers are for the shape `own`; all shapes use `limit`, `window` and `algorithm`."""

    shape: Literal["steady", "burst", "abuse", "own"]
    key: Annotated[str, Field(max_length=256, pattern=r"^sim:")] | None = None
    """A new key by default; must begin with `sim:`."""
    rate: Annotated[float, Field(gt=0, le=200, allow_inf_nan=False)] = 50.0
    seconds: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 20.0
    keys: Annotated[int, Field(ge=1, le=100)] = 1
    cost: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1
    limit: Annotated[int, Field(ge=0, le=2**53 - 1)] = 100
    window: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    algorithm: Annotated[str, Field(max_length=64)] | None = None


class Plan(NamedTuple):
    """What to send, and for how long."""

    rate: float
    """Per second; 0 sends everything at once."""
    seconds: float
    planned: int
    keys: int = 1
    cost: int = 1

    def due(self, passed: float) -> int:
        """How many should have been sent by now."""
        return min(self.planned, int(passed * self.rate) + 1 if self.rate else self.planned)


SHAPES: Final = {
    "steady": Plan(5.0, 5.0, 25),
    "burst": Plan(0.0, LISTEN, 100),
    "abuse": Plan(30.0, 60.0, 1_800),
}


def role_to_simulate(node: Node) -> Role | None:
    """The minimum role for simulations; `None` if they are turned off."""
    if node.settings.simulator == "off":
        return None
    return "viewer" if node.settings.simulator == "on" else "operator"


def may_simulate(node: Node, caller: Caller) -> bool:
    """Whether this caller may simulate."""
    role = role_to_simulate(node)
    return role is not None and caller.may(role)


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["simulation"], route_class=guarded(node))
    front = Front(node)
    running: set[Simulation] = set()
    role = role_to_simulate(node)
    if role is None:
        return made

    @made.post(
        "/simulate",
        summary="Send traffic and report the results",
        response_class=StreamingResponse,
        **needs(role, {409: f"{AT_ONCE} simulations run already"}),
    )
    async def simulate(body: SimulateBody) -> StreamingResponse:
        """Real checks of keys that begin with `sim:`, by this node.

        The answer is a stream of JSON lines: `started`, then `second` for each second and `switch` whenever another
        algorithm decides, and `ended`. To stop it, close the connection.
        """
        if len(running) >= AT_ONCE:
            raise ProblemError(CONFLICT, f"{AT_ONCE} simulations run on this node already")
        return SimulationResponse(Simulation(node, front, body), running)

    return made


class SimulationResponse(StreamingResponse):
    """Streams the events of a simulation, which counts as `running` from the moment that it is admitted."""

    def __init__(self, simulation: Simulation, running: set[Simulation]) -> None:
        self._simulation, self._running = simulation, running
        super().__init__(
            self._lines(), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"}
        )
        running.add(simulation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream it; the client may be gone before the first line."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.discard(self._simulation)

    async def _lines(self) -> AsyncIterator[bytes]:
        async for event in self._simulation.events():
            yield json.dumps(event, separators=(",", ":")).encode() + b"\n"


class Simulation:
    """One run of a shape."""

    def __init__(self, node: Node, front: Front, body: SimulateBody) -> None:
        self._node = node
        self._front = front
        self._body = body
        self._algorithm = UNSET if body.algorithm is None else body.algorithm
        # Raises if it is invalid.
        limit = limit_of(node.settings, (body.limit, body.window, self._algorithm, UNSET))
        self._said = limit_in_words(limit)
        own = Plan(
            body.rate, body.seconds, round(body.rate * body.seconds) or 1, body.keys, body.cost
        )
        self._plan = SHAPES.get(body.shape, own)
        self._key = key = body.key or f"sim:{secrets.token_hex(2)}"
        many = self._plan.keys
        self._keys = [key] if many == 1 else [f"{key}:{place}" for place in range(many)]
        self._sent = 0
        self._counts = {"sent": 0, "allowed": 0, "denied": 0, "failed": 0}
        self._last: dict[str, Any] | None = None

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Send checks, and yield what happens."""
        loop, plan, control = asyncio.get_running_loop(), self._plan, self._node.control
        began = loop.time()
        choice = control.deciding()
        yield self._started(choice.algorithm)
        reported, second, why = dict(self._counts), 0, "done"
        while True:
            passed = loop.time() - began
            if self._node.draining:
                why = "draining"
            else:
                await self._send(plan.due(passed) - self._sent)
            passed = loop.time() - began
            now = control.deciding()
            if now.epoch != choice.epoch:
                yield self._switch(choice.algorithm, now, passed)
                choice = now
            is_over = passed >= plan.seconds or why != "done"
            if passed >= second + 1 or is_over:
                second += 1
                yield self._second(second, reported, choice)
                reported = dict(self._counts)
            if is_over:
                break
            await asyncio.sleep(STEP)
        yield {
            "type": "ended",
            "why": why,
            **self._counts,
            "at": self._now(),
            "algorithm": choice.algorithm,
        }

    async def _send(self, many: int) -> None:
        """Send this many checks as one batch: a browser's own requests would not arrive at once."""
        body = self._body
        if many <= 0:
            return
        checks = [
            Check(key, body.limit, body.window, self._algorithm, UNSET, self._plan.cost)
            for key in (self._keys[(self._sent + place) % len(self._keys)] for place in range(many))
        ]
        self._sent += many
        outcome = self._front.check_batch(checks, perf_counter_ns())
        if isinstance(outcome, Pending):
            await asyncio.wait([outcome.future])
            outcome = outcome.result()
        self._count(outcome)

    def _count(self, outcomes: BatchResult) -> None:
        counts = self._counts
        for outcome in outcomes:
            for one in outcome.decisions() if isinstance(outcome, Run) else (outcome,):
                counts["sent"] += 1
                if isinstance(one, Decision):
                    counts["allowed" if one else "denied"] += 1
                    self._last = msgspec.to_builtins(answer_of(one))
                elif isinstance(one, EngineError):
                    counts["failed"] += 1
                else:
                    raise one

    def _now(self) -> float:
        return self._node.board.now_us() / 1_000_000

    def _started(self, algorithm: str) -> dict[str, Any]:
        plan, body = self._plan, self._body
        return {
            "type": "started",
            "shape": body.shape,
            "key": self._key,
            "keys": plan.keys,
            "rate": plan.rate,
            "seconds": plan.seconds,
            "planned": plan.planned,
            "limit": body.limit,
            "window": body.window,
            "cost": plan.cost,
            "said": self._said,
            "at": self._now(),
            "algorithm": algorithm,
        }

    def _second(self, second: int, reported: dict[str, int], choice: Any) -> dict[str, Any]:
        """What happened since the last event."""
        new = {name: many - reported[name] for name, many in self._counts.items()}
        return {
            "type": "second",
            "second": second,
            "at": self._now(),
            **new,
            "algorithm": choice.algorithm,
            "epoch": choice.epoch,
            "last": self._last,
            "text": self._in_words(new),
            "answer": _answer_in_words(self._last),
        }

    def _in_words(self, new: dict[str, int]) -> str:
        """What a second was like, in two sentences."""
        sent, denied = new["sent"], new["denied"]
        share = "All are allowed"
        if denied:
            share = "All are denied" if denied == sent else f"{denied:,} of them denied"
        left = 0 if self._last is None else self._last["remaining"]
        has = f"has {left:,} of {self._said} left" if left else f"has used all of its {self._said}"
        if left is None:
            has = "is not limited now"
        return f"A simulation sends {sent:,} requests a second. {share}: {self._key} {has}."

    def _switch(self, before: str, choice: Any, passed: float) -> dict[str, Any]:
        return {
            "type": "switch",
            "at": self._now(),
            "second": int(passed) + 1,
            "from": before,
            "to": choice.algorithm,
            "epoch": choice.epoch,
            "reason": choice.reason,
            "after": round(passed, 1),
        }


def _answer_in_words(answer: dict[str, Any] | None) -> str:
    """The last answer.

    >>> _answer_in_words({"allowed": False, "retry_after": 3.14, "backoff_level": 2})
    'Last answer: denied, level 2, again in 3.1 s.'
    >>> _answer_in_words({"allowed": True, "remaining": None})  # Limits are turned off.
    'Last answer: allowed, without a limit.'
    """
    if answer is None:
        return ""
    if answer["allowed"]:
        left = answer["remaining"]
        return f"Last answer: allowed, {'without a limit' if left is None else f'{left:,} left'}."
    level, after = answer["backoff_level"], answer["retry_after"]
    at_level = f", level {level}" if level else ""
    again = "" if after is None else f", again in {after:.1f} s"
    return f"Last answer: denied{at_level}{again}."
