"""Batches: each check is answered as it is when it comes alone, whatever its neighbours are."""

from __future__ import annotations

import json
from typing import Any, Final

from bench.bounds.calling import Endpoint

from . import strict
from .wire import CHECK, require_answer, service

BATCH: Final = Endpoint("POST", "/check/batch")
MAX_ALONE: Final = 50
"""How many checks of a batch are asked once more, each by itself."""


def check(data: bytes) -> None:
    """A batch is refused as a whole, or has as many answers as checks, in their order."""
    status, said = require_answer(BATCH, data)
    if status != 200:
        return
    batch = strict.read_loosely(data)
    asked, answers = batch.pop("checks"), said["decisions"]
    assert not isinstance(batch, strict.Bad), data[:200]
    assert strict.fault(batch) is None, (strict.fault(batch), data[:200])
    assert len(answers) == len(asked)
    for number, (one, answer) in enumerate(zip(asked, answers, strict=True)):
        if strict.fault(one, depth=2) is not None:
            assert "error" in answer, (strict.fault(one), one)
        elif number < MAX_ALONE:
            _require_alike(one, answer)


def _require_alike(one: Any, answer: dict[str, Any]) -> None:
    try:
        body = json.dumps(one, allow_nan=False).encode()
    except ValueError:
        return  # A number of a size that Python cannot write down again.
    status, content = service().ask(CHECK, body)
    alone = json.loads(content)
    if "error" in answer:
        assert answer["error"]["code"] == alone.get("code"), (one, answer, alone)
    else:
        assert status == 200, (one, answer, alone)
        assert answer["key"] == alone["key"] == one["key"]
        for field in ("limit", "algorithm"):
            assert answer[field] == alone[field], (one, field)
