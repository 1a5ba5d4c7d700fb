"""Batches: how a body of many checks is parsed, in groups that can be decided in one step.

A piece is plain checks that stand side by side and differ in their keys only, or one check, or the problem with it.
What such checks have in common is looked at once; even whether a field was lost (see `bodies`): plain checks that
differ in their keys have as many quotes each, and all of them together as many as the body, unless it says more than
was understood.

If something in the body is wrong or unknown, its checks are read one by one, so that a bad one does not spoil the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ..front import CheckRun
from . import bodies
from .bodies import CheckBody, PlainCheckBody
from .json_reading import UNREADABLE, read, read_outermost
from .problems import BAD_VALUE, ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..front import BatchItem


_CHECK: Final = msgspec.json.Decoder(CheckBody)
_BATCH: Final = msgspec.json.Decoder(bodies.BatchBody)
_RAW_BATCH: Final = msgspec.json.Decoder(bodies.RawBatchBody)


def read_batch(body: bytes, note_unknown: Callable[[int], None]) -> Sequence[BatchItem]:
    """The checks of a body, in their order; how many of their fields nobody knows is noted."""
    try:
        checks = _BATCH.decode(body).checks
    except UNREADABLE:
        return _read_one_by_one(body, note_unknown)
    pieces = list(neighbours(checks))
    if not _are_all_of(pieces, body):
        return _read_one_by_one(body, note_unknown)
    _require_size(len(checks))
    return pieces


def neighbours(checks: list[PlainCheckBody]) -> Iterator[CheckRun | PlainCheckBody]:
    """The checks in pieces."""
    begins = 0
    before: object = None
    for at, check in enumerate(checks):
        asked = (check.limit, check.window, check.algorithm, check.burst, check.cost)
        if asked != before:
            if at:
                yield _piece(checks[begins:at])
            begins, before = at, asked
    if checks:
        yield _piece(checks[begins:])


def within_batch(problem: ProblemError, at: int) -> ProblemError:
    """The same problem, pointing into the batch."""
    field = (problem.pointer or "#").removeprefix("#")
    problem.pointer = f"#/checks/{at}{field}"
    return problem


def _piece(checks: list[PlainCheckBody]) -> CheckRun | PlainCheckBody:
    return CheckRun(checks[0], [one.key for one in checks]) if len(checks) > 1 else checks[0]


def _are_all_of(pieces: list[CheckRun | PlainCheckBody], body: bytes) -> bool:
    """Whether the checks are certainly all that `body` says."""
    if b"\\" in body:
        return False
    quotes = len('""')  # Those around `checks`, and theirs.
    for piece in pieces:
        check, many = (piece.check, len(piece.keys)) if isinstance(piece, CheckRun) else (piece, 1)
        quotes += many * bodies.encode(check).count(b'"')
    return body.count(b'"') == quotes


def _read_one_by_one(body: bytes, note_unknown: Callable[[int], None]) -> list[BatchItem]:
    batch, unknown = read_outermost(_RAW_BATCH, body)
    _require_size(len(batch.checks))
    note_unknown(unknown)
    return [_read_check(bytes(raw), note_unknown) for raw in batch.checks]


def _read_check(raw: bytes, note_unknown: Callable[[int], None]) -> CheckBody | ProblemError:
    try:
        check, unknown = read(_CHECK, raw)
    except ProblemError as error:
        return error
    note_unknown(unknown)
    return check


def _require_size(checks: int) -> None:
    if not 0 < checks <= bodies.MAX_BATCH:
        raise ProblemError(
            BAD_VALUE,
            f"a batch must have 1 to {bodies.MAX_BATCH} checks, not {checks}",
            pointer="#/checks",
        )
