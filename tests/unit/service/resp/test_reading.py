"""Bytes become the same commands however they are cut, and nothing that is sent makes the reader fail or grow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from headgate.service.resp.reading import CommandReader, TypedLine

MAX_BYTES = 65_536
words = st.binary(max_size=40) | st.sampled_from(
    [b"", b"\r\n", b"$1\r\nx", b"*1\r\n", 2_000 * b"x"]
)
commands_of = st.lists(st.lists(words, min_size=1, max_size=6), max_size=8)


def packed(command: list[bytes]) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"*%d\r\n%b" % (len(command), b"".join(parts))


def fed(reader: CommandReader, data: bytes, cuts: list[int]) -> list[list[bytes]]:
    commands = []
    for size in [*cuts, len(data) + 1]:
        commands += reader.feed(data[:size])
        data = data[size:]
    return [list(command) for command in commands]


@given(commands_of, st.lists(st.integers(1, 60), max_size=30))
def test_commands_are_read_as_they_were_sent_however_they_are_cut(
    commands: list[list[bytes]], cuts: list[int]
) -> None:
    reader = CommandReader(MAX_BYTES)
    assert fed(reader, b"".join(map(packed, commands)), cuts) == commands
    assert not reader.unfinished
    assert not reader.error


@given(st.binary(max_size=300), st.lists(st.integers(1, 20), max_size=20))
def test_any_bytes_are_commands_or_an_error_and_mean_the_same_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    whole, cut = CommandReader(MAX_BYTES), CommandReader(MAX_BYTES)
    assert [list(one) for one in whole.feed(data)] == fed(cut, data, cuts)
    assert whole.error == cut.error


def test_a_line_is_a_command_that_is_known_to_be_typed() -> None:
    (command,) = CommandReader(MAX_BYTES).feed(b"  PING  hello \r\n\r\n")
    assert command == [b"PING", b"hello"]
    assert isinstance(command, TypedLine)


def test_commands_before_an_error_are_read() -> None:
    reader = CommandReader(MAX_BYTES)
    assert reader.feed(packed([b"PING"]) + b"*1\r\n:1\r\n" + packed([b"PING"])) == [[b"PING"]]
    assert reader.error == "the words of a command are bulk strings, each with its length"


@pytest.mark.parametrize(
    "data",
    [
        b"*1\r\n$65537\r\n",
        b"*1000000000\r\n",
        b"*99999999999999999999\r\n",
        b"*2\r\n$40000\r\n" + 40_000 * b"x" + b"\r\n$40000\r\n",
        b"*1\r\n$-1\r\n",
        b"*x\r\n",
        b"*1\r\n$1\r\nab\r\n",
        3_000 * b"x",
        b"*" + 3_000 * b"1",
    ],
)
def test_oversized_or_invalid_commands_are_refused_when_announced(data: bytes) -> None:
    reader = CommandReader(MAX_BYTES)
    assert reader.feed(data) == []
    assert reader.error


def test_a_command_that_drips_in_is_read_once() -> None:
    """Each byte is looked at once; a reader that looked at all of them each time would take a minute."""
    reader = CommandReader(1_048_576)
    data = packed([b"x", 1_000_000 * b"y"])
    began = time.process_time()
    for at in range(0, len(data) - 1, 7):
        assert reader.feed(data[at : min(at + 7, len(data) - 1)]) == []
    assert reader.feed(data[-1:]) == [[b"x", 1_000_000 * b"y"]]
    assert time.process_time() - began < 5
