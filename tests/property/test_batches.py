"""A body is understood the same, whether it is cut where its keys are or read as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from headgate.service import batches
from headgate.service.alike import Alike, read_alike
from headgate.service.problems import ProblemError

PIECES = [
    *('"', "\\", '\\"', "\\u0061", ",", ":", " ", "\n", "\x00", "\x7f", "{", "}", "[", "]", "]}"),
    *('"key"', '"key":"', '"}', '"},{"key":"', '"checks"', '"limit":5', ',"limit":5', '"cost":2', "5"),
    *("a", "user:1", "é", "\u2028", "\U0001f600", "\ufeff", "null", '"new":1'),
]  # fmt: skip
fields = st.sampled_from(
    ["", '"limit":5,', '"limit": 5, "window": 60, ', '"algorithm":"key",', '"key":"x",', '"new":1,']
)
keys = st.lists(st.sampled_from(PIECES), max_size=3).map("".join) | st.sampled_from(
    ["a", "b", "user:1", "x" * 2_048, "x" * 2_049]
)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Batches written alike, and what becomes of them with some letters more, or some less."""
    before = "{" + draw(fields) + '"key":' + draw(st.sampled_from(["", " "])) + '"'
    behind = '"' + draw(st.sampled_from(["", ',"cost":2', ', "burst": 3', ',"key":"x"', ',"limit":"x"'])) + "}"  # fmt: skip
    between = draw(st.sampled_from([",", ", ", "", " ,", ",\n"]))
    many = draw(st.lists(keys, min_size=1, max_size=4))
    text = '{"checks":[' + between.join(before + key + behind for key in many) + "]}"
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        gone = draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from(["", *PIECES])) + text[at + gone :]
    return text


def understood(body: bytes) -> tuple[Any, int]:
    """What a batch says, check by check, and how many fields nobody knows."""
    unknown: list[int] = []
    try:
        pieces = batches.read_batch(body, unknown.append)
    except ProblemError as error:
        return error.as_dict(), sum(unknown)
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, ProblemError):
            found.append(piece.as_dict())
        else:
            checks = piece.one_by_one() if isinstance(piece, Alike) else [piece]
            found += [
                (one.key, one.limit, one.window, one.algorithm, one.burst, one.cost)
                for one in checks
            ]
    return found, sum(unknown)


@given(bodies())
@example('{"checks":[{"key":"a"},{"key":"b"}]}')
@example('{"checks":[{"key":"a"}{"key":"b"}]}')
@example('{"checks":[{"key":"a"},{"key":""}]}')
@example('{"checks":[{"key":"a"},{"key":"\\u0062"}]}')
@example('{"checks":[{"key":"a"},{"key":"b\x00"}]}')
@example('{"checks":[{"key":"a","new":1},{"key":"b","new":1}]}')
@example('{"checks":[{"key":"a","limit":5},{"key":"b","limit":6}]}')
@example('{"checks":[{"key":"a"},{"key":"b"}],"checks":[{"key":"b"}]}')
@example('{"checks":[{"algorithm":"key","key":"a"},{"algorithm":"key","key":"b"}]}')
@example('{"checks":[{"key":"a","limit":5},{"key":"b","limit":5,"key":"c","limit":5}]}')
def test_a_body_that_is_cut_says_what_it_says_when_it_is_parsed(body: str) -> None:
    raw = body.encode()
    cut = understood(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "read_alike", lambda _: None)
        assert cut == understood(raw)


@given(
    st.binary(max_size=60).map(lambda tail: b'{"checks":[{"key":"a"},{"key":"b' + tail + b'"}]}')
)
def test_bytes_that_are_no_text_are_left_to_the_parser(body: bytes) -> None:
    cut = understood(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "read_alike", lambda _: None)
        assert cut == understood(body)


def test_a_body_that_is_hard_to_match_is_given_up_in_one_pass() -> None:
    """Each of these would take hours if the pattern tried every way to match them."""
    for stuffing in ('"key":"', '"key" ', '"key": ', "{", " ", '"key":"a"},'):
        assert read_alike(('{"checks":[{' + stuffing * 100_000).encode()) is None
        assert read_alike(('{"checks":[{"key":"a' + stuffing * 100_000).encode()) is None
