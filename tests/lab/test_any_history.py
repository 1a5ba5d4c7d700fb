"""Whatever a history says, the checker gives a verdict and a picture, or refuses it with a reason."""

from __future__ import annotations

import contextlib
import json
import xml.etree.ElementTree as ET
from typing import Any

from hypothesis import given, strategies as st

from headgate.lab.history import (
    FAULTS,
    FORMAT,
    MAX_NUMBER,
    SOURCES,
    TYPES,
    VERBS,
    HistoryError,
    read_history,
)
from headgate.lab.picture import picture
from headgate.lab.promises import PROMISES
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge
from tests.lab.test_clean import HUNDREDS

LIMITS: list[dict[str, Any]] = [
    *({"algorithm": name, "limit": limit, "window_us": 1_000}
      for name in ("fixed_window", "sliding_window", "sliding_log", "token_bucket", "exponential_backoff", "adaptive")
      for limit in (0, 1, 5)),
    {"algorithm": "concurrency", "limit": 2, "ttl_us": 1_000},
    {"algorithm": "fixed_window", "limit": 2, "calendar": {"period": "month", "tz": "Asia/Beirut", "anchor": 3}},
]  # fmt: skip
times = st.integers(0, 5_000) | st.integers(-MAX_NUMBER, MAX_NUMBER)
spans = st.tuples(times, st.integers(0, 2_000)).map(
    lambda pair: (pair[0], min(MAX_NUMBER, sum(pair)))
)
names = st.sampled_from(["a", "b", "\x00<&'"])
amounts = st.integers(0, 9) | st.integers(0, MAX_NUMBER)


@st.composite
def operations(draw: st.DrawFn) -> dict[str, Any]:
    t0, t1 = draw(spans)
    verb = draw(st.sampled_from(sorted(VERBS)))
    record: dict[str, Any] = {
        "f": verb, "t0": t0, "t1": t1, "type": draw(st.sampled_from(sorted(TYPES))),
        "key": draw(names), "rule": draw(st.sampled_from(["r", "s"])),
        "source": draw(st.sampled_from(sorted(SOURCES))),
        "cost": draw(st.integers(-2, 4) | times),
        "token": draw(names), "lease_id": draw(names), "used": draw(amounts),
    }  # fmt: skip
    optional = {
        "id": st.integers(0, 3), "proc": names, "node": names, "rule_rev": st.integers(0, 3),
        "remaining": amounts, "retry_after_us": times, "reset_after_us": amounts,
        "own": st.booleans(), "deadline_us": times, "epoch": names,
    }  # fmt: skip
    record |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    if draw(st.booleans()):
        record |= {"ver": draw(st.integers(0, 5) | amounts), "now_us": draw(times)}
    if verb == "put_rule":
        record |= {"rule_rev": draw(st.integers(0, 3)), "limit": draw(st.sampled_from(LIMITS))}
    return record


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    t0, t1 = draw(spans)
    heal = {"heal": min(MAX_NUMBER, t1 + draw(st.integers(0, 900)))} if draw(st.booleans()) else {}
    step_us = draw(times.filter(bool))
    kind = draw(st.sampled_from(sorted(FAULTS)))
    return {"fault": kind, "t0": t0, "t1": t1, "step_us": step_us, "nodes": draw(amounts), **heal}


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    engine, mode = draw(st.sampled_from(sorted(PROMISES)))
    counts = (
        "nodes",
        "regions",
        "lag_us",
        "chunk",
        "lease_us",
        "unconfirmed",
        "in_flight",
        "deadline_us",
        "drain_us",
    )
    parameters: dict[str, Any] = {name: draw(amounts) for name in counts if draw(st.booleans())}
    parameters["on_error"] = draw(st.sampled_from(["fallback", "open", "closed", "raise"]))
    return {
        "format": FORMAT, "version": 1, "engine": engine, "mode": mode, "parameters": parameters,
        "limits": {"r": draw(st.sampled_from(LIMITS)), "s": draw(st.sampled_from(LIMITS))},
        "epoch_us": draw(times), "epsilon_us": draw(st.just(0) | amounts),
        "aligned": draw(st.booleans()), "fresh": draw(st.booleans()),
    }  # fmt: skip


@HUNDREDS
@given(headers(), st.lists(operations(), min_size=1, max_size=12), st.lists(faults(), max_size=3))
def test_any_history_gets_a_verdict_and_a_picture_or_a_reason(
    header: dict[str, Any], asked: list[dict[str, Any]], broken: list[dict[str, Any]]
) -> None:
    lines = [json.dumps(one) for one in (header, *asked, *broken)]
    with contextlib.suppress(HistoryError):
        scene = Scene(read_history(lines))
        verdict = judge(scene)
        told = json.loads(json.dumps(verdict.as_json()))["verdict"]
        answered = any(one.type in ("allow", "deny") for one in scene.operations)
        assert told == (("holds" if answered else "unjudged") if verdict.holds else "violated")
        if scene.trails:
            ET.fromstring(picture(scene, verdict))  # noqa: S314 - written by us
