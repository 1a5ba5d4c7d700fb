"""A plain FastAPI service that counts in memory: pydantic, a dict and the sliding window of two counters."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import FastAPI, Response
from pydantic import BaseModel, Field

app = FastAPI()
windows: dict[str, tuple[int, int, int]] = {}


class CheckRequest(BaseModel):
    """What is asked."""

    key: Annotated[str, Field(min_length=1)]
    limit: Annotated[int, Field(ge=0)] = 100
    window: Annotated[float, Field(gt=0)] = 60.0


class CheckResponse(BaseModel):
    """What is answered."""

    key: str
    allowed: bool
    limit: int
    remaining: int
    algorithm: str
    retry_after: float
    reset_after: float
    backoff_level: int
    source: str


class BatchRequest(BaseModel):
    """Several questions."""

    checks: list[CheckRequest]


class BatchResponse(BaseModel):
    """As many answers."""

    decisions: list[CheckResponse]


def decide(asked: CheckRequest) -> CheckResponse:
    """Take one unit if it fits."""
    now = time.time()
    index = int(now // asked.window)
    current, count, previous = windows.get(asked.key, (index, 0, 0))
    if current != index:
        previous = count if current == index - 1 else 0
        current, count = index, 0
    into = now / asked.window - index
    used = previous * (1 - into) + count
    allowed = used + 1 <= asked.limit
    if allowed:
        count += 1
        used += 1
    windows[asked.key] = (current, count, previous)
    left = (1 - into) * asked.window
    return CheckResponse(
        key=asked.key,
        allowed=allowed,
        limit=asked.limit,
        remaining=max(0, int(asked.limit - used)),
        algorithm="sliding_window",
        retry_after=0.0 if allowed else retry_after(asked, count, previous, into),
        reset_after=left + asked.window,
        backoff_level=0,
        source="engine",
    )


def retry_after(asked: CheckRequest, count: int, previous: int, into: float) -> float:
    """Seconds until the window before has faded far enough; it is this one if this one is full."""
    room = asked.limit - 1 - count
    if room >= 0:
        return (1 - room / previous - into) * asked.window
    return (2 - max(0, asked.limit - 1) / max(1, count) - into) * asked.window


def add_headers(response: Response, answer: CheckResponse, window: float, began: float) -> None:
    """The headers that everybody sends here."""
    reset = int(answer.reset_after) + 1
    headers = response.headers
    headers["RateLimit-Policy"] = f'"default";q={answer.limit};w={window:g}'
    headers["RateLimit"] = f'"default";r={answer.remaining};t={reset}'
    headers["X-RateLimit-Limit"] = str(answer.limit)
    headers["X-RateLimit-Remaining"] = str(answer.remaining)
    headers["X-RateLimit-Reset"] = str(int(time.time()) + reset)
    headers["X-Process-Time"] = f"{time.perf_counter() - began:.6f}"
    if not answer.allowed:
        headers["Retry-After"] = str(int(answer.retry_after) + 1)


@app.post("/check")
async def check(asked: CheckRequest, response: Response) -> CheckResponse:
    """One check."""
    began = time.perf_counter()
    answer = decide(asked)
    add_headers(response, answer, asked.window, began)
    return answer


@app.post("/check/batch")
async def batch(asked: BatchRequest, response: Response) -> BatchResponse:
    """Several checks."""
    began = time.perf_counter()
    answers = BatchResponse(decisions=[decide(one) for one in asked.checks])
    response.headers["X-Process-Time"] = f"{time.perf_counter() - began:.6f}"
    return answers
