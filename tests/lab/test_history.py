"""What is no history is refused, with its line and the reason; what is one is read as it was written."""

from __future__ import annotations

import json
import multiprocessing
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from headgate import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Charge,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.charge import ChargeSet
from headgate.lab.history import (
    FORMAT,
    MAX_LINE,
    HistoryError,
    load_history,
    read_history,
)
from headgate.lab.limits import limit_from_json, limit_to_json
from headgate.lab.recorder import HistoryRecorder, monotonic_us
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = {"algorithm": "fixed_window", "limit": 5, "window_us": 1_000_000}
HEADER: dict[str, Any] = {
    "format": FORMAT,
    "version": 1,
    "engine": "memory",
    "mode": "exact",
    "limits": {"api": LIMIT},
}
CHECK: dict[str, Any] = {"f": "check", "key": "a", "t0": 1, "t1": 2, "type": "allow"}


def lines(*records: Any) -> list[str]:
    return [json.dumps(one) for one in records]


@pytest.mark.parametrize(
    "records, message",
    [
        ([], "the history is empty: its first line must be a header"),
        ([HEADER], "the history has no operations to check"),
        ([{**HEADER, "format": "x"}], 'line 1: the first line is a header with "format": "headgate-history"'),
        ([{**HEADER, "version": 2}], "line 1: the format's version is 2, but only 1 is supported"),
        ([{**HEADER, "limits": {}}], "line 1: limits: name at least one"),
        ([{**HEADER, "limits": {"a": {"algorithm": "leaky"}}}], "line 1: limits.a: algorithm: 'leaky' is not one of"),
        ([{**HEADER, "limits": {"a": {**LIMIT, "burst": 3}}}], "line 1: limits.a: fixed_window has no 'burst'"),
        ([{**HEADER, "limits": {"a": {**LIMIT, "limit": -1}}}], "line 1: limits.a: limit must be between 0 and"),
        ([{**HEADER, "limits": {"a": {"algorithm": "fixed_window", "limit": 1}}}], "line 1: limits.a: "),
        ([{**HEADER, "limits": {"a": 5}}], "line 1: limits.a: a limit must be an object"),
        ([{**HEADER, "colour": 1}], "line 1: there is no field 'colour'"),
        ([{**HEADER, "parameters": {"nodez": 3}}], "line 1: there is no field 'nodez'"),
        ([{**HEADER, "parameters": {"on_error": "shrug"}}], "line 1: parameters.on_error: 'shrug' is not one of"),
        ([HEADER, CHECK, {**CHECK, "t1": 0}], "line 3: it ends at 0, before it began, at 1"),
        ([HEADER, {**CHECK, "type": "maybe"}], "line 2: type: 'maybe' is not one of allow, deny, fail, info"),
        ([HEADER, {**CHECK, "f": "chek"}], "line 2: f: 'chek' is not one of"),
        ([HEADER, {**CHECK, "source": "x"}], "line 2: source: 'x' is not one of"),
        ([HEADER, {**CHECK, "t0": 1.5}], "line 2: t0: a whole number, not 1.5"),
        ([HEADER, {**CHECK, "t0": True}], "line 2: t0: a whole number, not true"),
        ([HEADER, {**CHECK, "t0": 2**70}], "line 2: t0: a whole number, not 1180591620717411303424"),
        ([HEADER, {**CHECK, "key": 5}], "line 2: key: a text, not 5"),
        ([HEADER, {**CHECK, "key": ""}], "line 2: key: it is missing"),
        ([HEADER, {**CHECK, "ver": 1}], "line 2: a receipt has both ver and now_us"),
        ([HEADER, {**CHECK, "rule": "b"}], "line 2: rule: the header has no limit 'b'"),
        ([{**HEADER, "limits": {"a": LIMIT, "b": LIMIT}}, CHECK], "line 2: rule: name one of the header's"),
        ([HEADER, {**CHECK, "f": "acquire"}], "line 2: token: acquire needs it"),
        ([HEADER, {**CHECK, "f": "lease"}], "line 2: lease_id: lease needs it"),
        ([HEADER, {**CHECK, "f": "ledger"}], "line 2: used: ledger needs it"),
        ([HEADER, {**CHECK, "f": "put_rule", "limit": LIMIT}], "line 2: rule_rev: put_rule needs a revision"),
        ([HEADER, {**CHECK, "f": "put_rule", "rule_rev": 2}], "line 2: limit: a limit must be an object"),
        ([HEADER, {"f": "check"}], "line 2: t0: it is missing"),
        ([HEADER, {"fault": "gremlins", "t0": 1, "t1": 2}], "line 2: fault: 'gremlins' is not one of"),
        ([HEADER, {"fault": "failover", "t0": 3, "t1": 2}], "line 2: a fault must begin at t0, end at t1"),
        ([HEADER, {"fault": "failover", "t0": 1, "t1": 2, "heal": 1}], "line 2: a fault must begin at t0, end"),
        ([HEADER, {"fault": "clock_step", "t0": 1, "t1": 2}], "line 2: step_us: a clock step"),
        ([HEADER, [1]], "line 2: a line is an object, in braces"),
    ],
)  # fmt: skip
def test_an_invalid_history_is_refused_with_its_line(records: list[Any], message: str) -> None:
    with pytest.raises(HistoryError) as raised:
        read_history(lines(*records))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            b"{",
            "line 2: this is not a line of JSON: Expecting property name enclosed in double quotes",
        ),
        (b"\xff\xfe", "line 2: this is not a line of JSON: it is not UTF-8"),
        (b"[" * 60_000, "line 2: this is not a line of JSON"),
        (b" " * (MAX_LINE + 1), f"line 2: a line may have at most {MAX_LINE} bytes"),
        (b'{"t0": ' + b"9" * 6_000 + b"}", "line 2: "),
    ],
)
def test_bytes_that_are_no_json_are_refused(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(json.dumps(HEADER).encode() + b"\n" + text)
    with pytest.raises(HistoryError) as raised:
        load_history(path)
    assert str(raised.value).startswith(message)


def test_a_line_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    tracemalloc.start()
    with pytest.raises(HistoryError):
        load_history(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_history_or_refused(junk: bytes | str) -> None:
    with pytest.raises(HistoryError):
        read_history([json.dumps(HEADER), junk])


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="No such file or directory"):
        load_history(tmp_path / "none.jsonl")


def test_an_engine_that_promises_nothing_is_refused() -> None:
    history = read_history(lines({**HEADER, "engine": "abacus"}, CHECK))
    with pytest.raises(HistoryError, match="there is no promise for 'abacus'"):
        Scene(history)


@pytest.mark.parametrize(
    "limit",
    [
        FixedWindow(5, 1_000_000),
        CalendarWindow(5, Calendar("month", "Europe/Berlin", 15)),
        SlidingWindow(5, 1_000_000),
        SlidingLog(5, 1_000_000),
        TokenBucket(5, 1_000_000, 9),
        ExponentialBackoff(5, 1_000_000, 3),
        Adaptive(5, 1_000_000),
        Concurrency(5, 2_000_000),
    ],
)
def test_a_limit_survives_writing_and_reading(limit: Limit) -> None:
    assert limit_from_json(json.loads(json.dumps(limit_to_json(limit)))) == limit


def _write(path: Path, number: int) -> None:
    recorder = HistoryRecorder.join(path)
    for turn in range(200):
        at = monotonic_us()
        recorder.operation(
            f="check", key=f"{number}", t0=at, t1=at, type="allow", err="x" * (turn % 97)
        )
    recorder.close()


def test_lines_of_many_threads_and_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    limit = FixedWindow(10_000, 1_000_000)
    with HistoryRecorder(path, engine="memory", mode="exact", limits={"api": limit}):
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_write, args=(path, number)) for number in range(3)]
        threads = [threading.Thread(target=_write, args=(path, 3 + number)) for number in range(3)]
        writers: list[Any] = [*processes, *threads]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    history = load_history(path)
    counts = {str(number): 0 for number in range(6)}
    for one in history.operations:
        counts[one.key] += 1
    assert set(counts.values()) == {200}
    assert judge(Scene(history)).holds


def test_a_request_of_several_charges_needs_an_id(tmp_path: Path) -> None:
    limits: dict[str, Limit] = {"a": FixedWindow(5, 1_000_000), "b": FixedWindow(9, 1_000_000)}
    request = ChargeSet(tuple(Charge("key", limit, rule=rule) for rule, limit in limits.items()))
    engine = MemoryEngine()
    with HistoryRecorder(
        tmp_path / "history.jsonl", engine="memory", mode="exact", limits=limits
    ) as recorder:
        with pytest.raises(UsageError, match="needs an id"):
            recorder.call(lambda: engine.decide([request])[0], f="check")
        recorder.call(lambda: engine.decide([request])[0], f="check", id=1)
    history = load_history(tmp_path / "history.jsonl")
    assert [(one.rule, one.own, one.id) for one in history.operations] == [
        ("a", True, 1),
        ("b", True, 1),
    ]
