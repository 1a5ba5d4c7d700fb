"""Bodies of every endpoint: answered or refused in words, and never read in another way than a strict reader does.

The first line of the data names the endpoint, such as `POST /check`; the rest is the body.
"""

from __future__ import annotations

import atexit
import json
from functools import cache
from typing import Any, Final

from bench.bounds.calling import Answer, Calling, Endpoint

from . import strict

MAX_DETAIL: Final = 2_000
CHECK: Final = Endpoint("POST", "/check")


@cache
def service() -> Calling:
    """One service for all bodies: it answers each for itself."""
    calling = Calling()
    calling.__enter__()
    atexit.register(calling.__exit__)
    return calling


@cache
def endpoints() -> dict[bytes, Endpoint]:
    """By their names; changes of rules and batches have targets of their own."""
    found = {str(one).encode(): one for one in service().endpoints()}
    left_out = (b"/api/r", b"/check/batch")
    return {name: one for name, one in found.items() if not any(map(name.count, left_out))}


def check(data: bytes) -> None:
    """Nothing is a server's error, and nothing is accepted that can be read in two ways."""
    name, _, body = data.partition(b"\n")
    endpoint = endpoints().get(name, CHECK)
    status, said = require_answer(endpoint, body)
    if status != 200:
        return
    try:
        read = strict.read(body)
    except strict.NotStrictError as error:
        raise AssertionError(f"accepted, but {error}: {body[:200]!r}") from None
    if endpoint is CHECK:
        assert said["key"] == read["key"]


def require_answer(endpoint: Endpoint, body: bytes) -> tuple[int, Any]:
    """What the service says to a body: an answer, or a refusal that is told well."""
    status, content = service().ask(endpoint, body)
    said = json.loads(content)
    if status == 200:
        return status, said
    assert 400 <= status < 500, Answer(status, content)
    assert said["status"] == status
    assert 0 < len(said["detail"]) <= MAX_DETAIL, said
    return status, said
