"""Batches: how a body with many checks is parsed, in groups that can be decided in one step.

A group is consecutive plain checks that differ only in their keys, or a single check, or its error. What such checks
have in common is examined once, even for lost fields (see `bodies`): plain checks that differ in their keys have the
same number of quotes each, and all of them together as many as the body, unless it contains more than was understood.

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
    """The checks of a body, in order; the number of unknown fields is passed to `note_unknown`."""
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
    """The checks in groups."""
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
    """Whether the checks are certainly the whole content of `body`."""
    if b"\\" in body:
        return False
    quotes = len('""')  # Those around `checks` itself.
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
        return error.with_traceback(None)  # A thousand of them would keep as many stacks alive.
    note_unknown(unknown)
    return check


def _require_size(checks: int) -> None:
    if not 0 < checks <= bodies.MAX_BATCH:
        raise ProblemError(
            BAD_VALUE,
            f"a batch must have 1 to {bodies.MAX_BATCH} checks, not {checks}",
            pointer="#/checks",
        )
