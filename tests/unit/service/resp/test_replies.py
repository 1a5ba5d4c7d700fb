"""Replies are what a client of Redis reads them as."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from headgate.engines.remote.serving import WireError
from headgate.service.resp.replies import encoded


def read(data: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(data)
    value = reader.gets()
    assert not reader.has_data()
    return value


@pytest.mark.parametrize("resp3", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        *(7, -1, b"", b"two\r\nlines", None, [], [1, 2, 3], list(range(100)), [True, 2]),
        *([b"x", 1], [1, [2, [b"y", None]]], [*range(40), [[1, b"ban", None]]], [None], [[]]),
    ],
)
def test_a_value_survives_encoding(value: Any, *, resp3: bool) -> None:
    assert read(encoded(value, resp3=resp3)) == value


def test_a_map_is_a_map_in_resp3_and_a_list_before() -> None:
    value = {b"a": 1, b"b": [b"x"]}
    assert read(encoded(value, resp3=True)) == value
    assert read(encoded(value)) == [b"a", 1, b"b", [b"x"]]


def test_an_error_is_one_line() -> None:
    reply = read(encoded(WireError("ERR two\r\nlines")))
    assert isinstance(reply, hiredis.ReplyError)
    assert str(reply) == "ERR two  lines"
