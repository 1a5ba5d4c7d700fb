"""Calls that are joined of packed words are, byte for byte, what hiredis would have packed."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest
from hiredis import pack_command

from headgate.charge import Charge, ChargeSet, PastCharge, ReadyCharge
from headgate.charge_kind import ChargeKind
from headgate.clock import ManualClock, SystemClock
from headgate.engines.redis.batch import PendingBatch
from headgate.engines.redis.codec import Codec
from headgate.engines.redis.keys import KeyCodec
from headgate.engines.redis.operations import Operations
from headgate.engines.redis.packed_requests import template_of
from headgate.engines.redis.packing import packed_bulk, unpacked_bulk
from headgate.rate import limits_of

if TYPE_CHECKING:
    from headgate import Decision

KEYS = ["a", "user:42", "x" * 99, "x" * 100, "x" * 256, "x" * 257, "ü", "a\r\n$3\r\nb", " ", "\0"]
CODECS = {
    "usual": Codec(KeyCodec(), SystemClock().now_us, test_clock=False),
    "namespace": Codec(KeyCodec("n\r\n"), SystemClock().now_us, test_clock=False),
    "clock of a test": Codec(KeyCodec(), ManualClock().now_us, test_clock=True),
    "receipts": Codec(KeyCodec(), SystemClock().now_us, test_clock=False, receipts=True),
    "cluster": Codec(KeyCodec(clustered=True), SystemClock().now_us, test_clock=False),
    "hashed": Codec(KeyCodec(hash_all=True), SystemClock().now_us, test_clock=False),
}


@pytest.mark.parametrize("words", [b"", b"a", b"a\r\n", b"$1\r\na\r\n", b"\n\n", b"x" * 1000])
def test_a_word_is_packed_as_hiredis_does_and_can_be_read_back(words: bytes) -> None:
    assert b"*1\r\n" + packed_bulk(words) == pack_command((words,))
    assert unpacked_bulk(packed_bulk(words)) == words


@pytest.mark.parametrize(
    "charge",
    [
        ReadyCharge("a", limits_of("100/minute", "token_bucket"), 37, ChargeKind.TAKE, None),
        PastCharge("a", limits_of("100/minute", "sliding_log"), 2, 1_800_000_000_000_000, None),
    ],
    ids=lambda charge: type(charge).__name__,
)
def test_a_reservation_of_one_limit_is_packed_as_the_script_reads_it(charge: Charge) -> None:
    codec = CODECS["usual"]
    part = codec.part(ChargeSet((charge,), 0, 2_000_000, "name"))
    *_, keys, name, body, record = codec.command((b"FCALL", b"decide"), [part])
    rule = codec.rule(charge.limits[0])
    past = isinstance(charge, PastCharge)
    step = struct.pack("<BBd", 1, 5 if past else 0, charge.cost)
    step += struct.pack("<d", charge.came_us) if isinstance(charge, PastCharge) else b""
    request = struct.pack("<BBd", 1, 2, 2_000_000) + step + b"\1"
    assert body == struct.pack("<dd", 0, 0) + b"\0\1" + rule + struct.pack("<d", 1) + request
    assert (keys, name, record) == (1, part.keys[0], codec.keys.reservation(b"", "name"))


@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_call_that_takes_units_is_packed_as_hiredis_does(
    codec: Codec,
    functions: bool,  # noqa: FBT001
) -> None:
    operations = Operations(codec, 128)
    operations.dialect.functions = functions
    (limit,) = limits_of("100/minute", "token_bucket")
    plain = codec.plain_maker(limit, "a rule")
    for keys in [*([key] for key in KEYS), KEYS, KEYS * 13]:
        parts = [plain(key) for key in keys]
        form = template_of(parts)
        assert form is not None
        command = operations.routed(0, parts, form).command
        names = tuple(codec.state_name(key, limit, "a rule") for key in keys)
        assert command[3 : 3 + len(keys)] == names
        assert operations.packed(parts, form, operations.words(form)) == pack_command(command)


@pytest.mark.parametrize("cost", [1, 2])
def test_a_batch_is_repeated_with_the_words_it_was_sent_with(cost: int) -> None:
    """Another one may have learned meanwhile that the server knows no functions."""

    async def main() -> None:
        operations = Operations(CODECS["usual"], 128)
        (limit,) = limits_of("100/minute", "token_bucket")
        plain = operations.codec.plain_maker(limit, None)("a")
        part = operations.codec.part(ChargeSet((Charge("a", limit, cost),)))
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        batch = PendingBatch([(future, plain if cost == 1 else part, operations, 0.0)])
        packed = batch.packed()
        operations.dialect.functions = False
        assert pack_command(batch.routed(0).command) == packed

    asyncio.run(main())
