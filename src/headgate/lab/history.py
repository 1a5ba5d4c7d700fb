"""A history: the calls of clients to a limiter, the answers, and the faults in the meantime.

A file of JSON lines. The first line is the header: what was run, with which limits, and what it promises. Every other
line is an operation (named by `f`) or a fault (named by `fault`), in any order. Times are integer microseconds of one
monotonic clock. All clients run on one machine, so the checker need not consider clock skew.

An operation lasts from `t0`, before its first byte was sent, to `t1`, after its last byte was read: its effect took
place in between. Its outcome is definite (`allow`, `deny`, `fail`: certainly not carried out) or not (`info`: unknown).

Reading is linear and bounded. Unknown fields and impossible values are errors: a checker that skips what it does not
understand would approve a history that it has not seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from ..errors import UsageError
from .limits import limit_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..algorithms import Limit

FORMAT: Final = "headgate-history"
VERSION: Final = 1
MAX_LINE: Final = 65_536
MAX_OPERATIONS: Final = 5_000_000
MAX_FAULTS: Final = 10_000
MAX_NUMBER: Final = 2**53 - 1
"""The largest exact integer; in microseconds, 285 years."""

VERBS: Final = frozenset(
    (
        *("check", "peek", "force", "reserve", "settle", "acquire", "renew", "release", "reset"),
        *("lease", "unlease", "put_rule", "ledger"),
    )
)
TYPES: Final = frozenset(("allow", "deny", "fail", "info"))
SOURCES: Final = frozenset(
    ("engine", "lease", "cache", "fallback", "open", "closed", "shadow", "ban")
)
FAULTS: Final = frozenset(
    (
        *("store_restart", "store_kept", "store_down", "store_slow", "failover", "partition"),
        *("node_kill", "node_stop", "clock_step", "other"),
    )
)
POLICIES: Final = frozenset(("fallback", "open", "closed", "raise"))


class HistoryError(UsageError):
    """A history that cannot be judged; the message names the line and the reason."""


class Operation(NamedTuple):
    """One line: a client's request and its answer."""

    f: str
    t0: int
    t1: int
    type: str
    key: str = ""
    rule: str = ""
    cost: int = 1
    source: str = "engine"
    id: str | int | None = None
    """Lines with the same id are the charges of one request, which passes or fails as a whole."""
    proc: str | int | None = None
    node: str | None = None
    region: str | None = None
    rule_rev: int | None = None
    ver: int | None = None
    epoch: str = ""
    now_us: int | None = None
    remaining: int | None = None
    retry_after_us: int | None = None
    reset_after_us: int | None = None
    own: bool | None = None
    """The answer to this charge alone, if the request was denied because of another one."""
    token: str | None = None
    lease_id: str | None = None
    deadline_us: int | None = None
    used: int | None = None
    limit: Limit | None = None
    err: str | None = None
    line: int = 0


class Fault(NamedTuple):
    """Something that was broken from `t0` to `t1`; its consequences may last until `heal`, or to the end."""

    fault: str
    t0: int
    t1: int
    heal: int | None = None
    name: str = ""
    node: str | None = None
    nodes: int | None = None
    """How many nodes it cut off; all by default."""
    step_us: int = 0
    line: int = 0

    @property
    def ends(self) -> int:
        """When it was over, as far as known."""
        return self.t1 if self.heal is None else self.heal


@dataclass(frozen=True, slots=True)
class HistoryHeader:
    """What was run, and what it promises."""

    engine: str
    mode: str
    limits: Mapping[str, Limit]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    epoch_us: int = 0
    """The offset from the times of this history to the engine's."""
    epsilon_us: int = 0
    """How far the engine's clock may be off, or how coarse it is."""
    aligned: bool = True
    """Whether windows begin at multiples of their length since 1970."""
    fresh: bool = True
    """Whether no key had been used before."""
    title: str = ""
    seed: int | None = None
    commit: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """A whole history, in the order of the file."""

    header: HistoryHeader
    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def load_history(path: str | Path) -> History:
    """Read a history from a file."""
    try:
        with Path(path).open("rb") as lines:
            return read_history(_bounded(lines))
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from None


def read_history(lines: Iterable[bytes | str]) -> History:
    """Read a history from its lines, in one pass, with no more memory than the operations need."""
    history: History | None = None
    for number, text in enumerate(lines, 1):
        if len(text) > MAX_LINE:
            _refuse(number, f"a line may have at most {MAX_LINE} bytes")
        if not text.strip():
            continue
        record = _record(number, text)
        if history is None:
            history = History(_header(number, record))
        elif "fault" in record:
            history.faults.append(_fault(number, record))
            if len(history.faults) > MAX_FAULTS:
                _refuse(number, f"a history may have at most {MAX_FAULTS} faults")
        else:
            history.operations.append(_operation(number, record, history.header))
            if len(history.operations) > MAX_OPERATIONS:
                _refuse(number, f"a history may have at most {MAX_OPERATIONS} operations")
    if history is None:
        raise HistoryError("the history is empty: its first line must be a header")
    if not history.operations:
        raise HistoryError("the history has no operations to check")
    return history


def _bounded(lines: Any) -> Iterable[bytes]:
    """The lines of a file, each read up to one byte beyond the bound."""
    while line := lines.readline(MAX_LINE + 1):
        yield line


def _record(number: int, text: bytes | str) -> dict[str, Any]:
    try:
        record = json.loads(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError:
        _refuse(number, "this is not a line of JSON: it is not UTF-8")
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        _refuse(number, f"this is not a line of JSON: {reason}")
    if type(record) is not dict:
        _refuse(number, "a line is an object, in braces")
    return record


def _header(number: int, record: dict[str, Any]) -> HistoryHeader:
    if record.pop("format", None) != FORMAT:
        _refuse(number, f'the first line is a header with "format": "{FORMAT}"')
    version = record.pop("version", None)
    if version != VERSION:
        _refuse(number, f"the format's version is {version!r:.20}, but only {VERSION} is supported")
    _check(number, record, HEADER_FIELDS, ("engine", "mode", "limits"))
    limits: dict[str, Limit] = {}
    for rule, numbers in record.pop("limits").items():
        limits[rule] = _limit(number, numbers, f"limits.{rule}")
    if not limits:
        _refuse(number, "limits: name at least one")
    _check(number, record.get("parameters", {}), PARAMETER_FIELDS, ())
    policy = record.get("parameters", {}).get("on_error", "raise")
    if policy not in POLICIES:
        _refuse(number, f"parameters.on_error: {policy!r:.40} is not one of {_names(POLICIES)}")
    return HistoryHeader(limits=limits, **record)


def _operation(number: int, record: dict[str, Any], header: HistoryHeader) -> Operation:
    _check(number, record, OPERATION_FIELDS, ("f", "t0", "t1", "type"))
    _one_of(number, "f", record["f"], VERBS)
    _one_of(number, "type", record["type"], TYPES)
    _one_of(number, "source", record.get("source", "engine"), SOURCES)
    if record["t1"] < record["t0"]:
        _refuse(number, f"it ends at {record['t1']}, before it began, at {record['t0']}")
    record["rule"] = _rule(number, record.get("rule"), header)
    verb = record["f"]
    if verb == "put_rule":
        record["limit"] = _limit(number, record.get("limit"), "limit")
        if "rule_rev" not in record:
            _refuse(number, "rule_rev: put_rule needs a revision")
    elif not record.get("key"):
        _refuse(number, "key: it is missing")
    for verbs, name in NEEDED:
        if verb in verbs and name not in record:
            _refuse(number, f"{name}: {verb} needs it")
    if verb != "ledger" and ("ver" in record) != ("now_us" in record):
        _refuse(number, "a receipt has both ver and now_us")
    return Operation(line=number, **record)


def _rule(number: int, rule: str | None, header: HistoryHeader) -> str:
    """The rule of an operation; optional if there is only one."""
    if rule is None:
        if len(header.limits) > 1:
            _refuse(number, "rule: name one of the header's limits")
        return next(iter(header.limits))
    if rule not in header.limits:
        _refuse(number, f"rule: the header has no limit {rule!r:.60}")
    return rule


def _fault(number: int, record: dict[str, Any]) -> Fault:
    _check(number, record, FAULT_FIELDS, ("fault", "t0", "t1"))
    _one_of(number, "fault", record["fault"], FAULTS)
    if not record["t0"] <= record["t1"] <= record.get("heal", record["t1"]):
        _refuse(number, "a fault must begin at t0, end at t1, and heal no earlier than that")
    if record["fault"] == "clock_step" and not record.get("step_us"):
        _refuse(number, "step_us: a clock step must not be 0")
    return Fault(line=number, **record)


def _limit(number: int, numbers: object, place: str) -> Limit:
    try:
        return limit_from_json(numbers)
    except (UsageError, TypeError) as error:
        _refuse(number, f"{place}: {error}")


def _check(
    number: int, record: dict[str, Any], known: Mapping[str, str], needed: tuple[str, ...]
) -> None:
    """Refuse fields that are unknown, missing or of the wrong type."""
    for name in needed:
        if name not in record:
            _refuse(number, f"{name}: it is missing")
    for name, value in record.items():
        kind = known.get(name)
        if kind is None:
            _refuse(number, f"there is no field {name!r:.60}; the fields are {_names(known)}")
        if not _is(kind, value):
            _refuse(number, f"{name}: {KINDS[kind]}, not {json.dumps(value)[:60]}")


def _is(kind: str, value: object) -> bool:
    if kind == "whole":
        return type(value) is int and 0 <= value <= MAX_NUMBER
    if kind == "any":
        return type(value) is int and -MAX_NUMBER <= value <= MAX_NUMBER
    if kind == "text":
        return type(value) is str
    if kind == "flag":
        return type(value) is bool
    if kind == "name":
        return type(value) is str or (type(value) is int and abs(value) <= MAX_NUMBER)
    return type(value) is dict


def _one_of(number: int, name: str, value: str, values: frozenset[str]) -> None:
    if value not in values:
        _refuse(number, f"{name}: {value!r:.40} is not one of {_names(values)}")


def _names(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


def _refuse(number: int, message: str) -> NoReturn:
    raise HistoryError(f"line {number}: {message}")


KINDS: Final = {
    "whole": "a whole number from 0 on",
    "any": "a whole number",
    "text": "a text",
    "flag": "true or false",
    "name": "a text or a whole number",
    "object": "an object",
}
HEADER_FIELDS: Final = {
    **dict.fromkeys(("engine", "mode", "title", "commit"), "text"),
    **dict.fromkeys(("limits", "parameters", "options"), "object"),
    **dict.fromkeys(("epsilon_us",), "whole"),
    **dict.fromkeys(("epoch_us", "seed"), "any"),
    **dict.fromkeys(("aligned", "fresh"), "flag"),
}
PARAMETER_FIELDS: Final = {
    "on_error": "text",
    "nodes_unknown": "flag",
    **dict.fromkeys(
        (
            *("nodes", "regions", "lag_us", "chunk", "lease_us", "unconfirmed", "in_flight"),
            *("state_file_us", "recovery_us", "deadline_us", "margin_us", "drain_us", "cache_us"),
            *("stray_per_mille", "settled_per_mille"),
        ),
        "whole",
    ),
}
OPERATION_FIELDS: Final = {
    **dict.fromkeys(
        ("f", "type", "key", "rule", "source", "node", "region", "epoch", "token", "lease_id"),
        "text",
    ),
    **dict.fromkeys(("id", "proc"), "name"),
    **dict.fromkeys(("t0", "t1", "now_us", "retry_after_us", "deadline_us"), "any"),
    **dict.fromkeys(("rule_rev", "ver", "remaining", "reset_after_us", "used"), "whole"),
    "cost": "any",
    "own": "flag",
    "limit": "object",
    "err": "text",
}
FAULT_FIELDS: Final = {
    **dict.fromkeys(("fault", "name", "node"), "text"),
    **dict.fromkeys(("t0", "t1", "heal", "step_us"), "any"),
    "nodes": "whole",
}
NEEDED: Final = (
    (frozenset(("acquire", "renew", "release", "settle")), "token"),
    (frozenset(("lease", "unlease")), "lease_id"),
    (frozenset(("ledger",)), "used"),
)
"""Fields that some operations cannot be judged without."""
