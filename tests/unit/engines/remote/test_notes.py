"""What numbers do not tell arrives with them: who answered, why, by which limit, and under which name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headgate import EngineError, MemoryEngine, SlidingWindow, TokenBucket
from headgate.board.key_settings import Ban, KeyOverride
from headgate.charge import Charge, ChargeSet
from headgate.engines.remote.codec import RemoteCodec
from headgate.engines.remote.engine import AsyncRemoteEngine, RemoteEngine
from headgate.engines.remote.notes import read_notes
from headgate.testing import Blocking
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from tests.service.resp_node import RespNode

LIMIT = TokenBucket(5, 60_000_000)


@pytest.fixture
def node() -> Iterator[RespNode]:
    with resp_node(MemoryEngine(max_keys=3)) as running:
        yield running


@pytest.fixture(params=["blocking", "awaited"])
def engine(request: pytest.FixtureRequest, node: RespNode) -> Iterator[Engine]:
    url = f"{node.url}?deadline=20"
    made: Any = (
        RemoteEngine(url) if request.param == "blocking" else Blocking(AsyncRemoteEngine(url))
    )
    yield made
    made.close()


def test_a_ban_says_that_it_is_one_and_why(node: RespNode, engine: Engine) -> None:
    node.wait(node.node.board.keep("b", Ban(key="bad", reason="spam: “ümläut”")))
    for decision in (
        engine.bind(LIMIT)("bad", 1),
        engine.bind(LIMIT)("bad", 2),
        engine.decide([ChargeSet((Charge("bad", LIMIT), Charge("good", LIMIT)))])[0],
    ):
        assert not decision
        assert (decision.source, decision.reason) == ("ban", "spam: “ümläut”")
    assert engine.usage("good", LIMIT).used == 0


def test_a_keys_own_limit_is_reported(node: RespNode, engine: Engine) -> None:
    node.wait(node.node.board.keep("l", KeyOverride(key="vip", rate="1000/minute")))
    decision = engine.bind(LIMIT)("vip", 1)
    assert decision.limited_by == SlidingWindow(1_000, 60_000_000)
    assert (decision.limit, decision.remaining) == (1_000, 999)


def test_a_shared_state_is_degraded(engine: Engine) -> None:
    hit = engine.bind(LIMIT)
    assert {hit(f"key:{number}", 1).degraded for number in range(8)} == {False, True}


def test_a_node_without_an_answer_says_whether_something_was_charged() -> None:
    codec = RemoteCodec("", lambda: 0)
    part = codec.part(ChargeSet((Charge("k", LIMIT),)))
    for code, indefinite in ((-4, False), (-5, True)):
        with pytest.raises(EngineError) as raised:
            codec.decision(part, [1, code, 0, 0, 0, 0], 1)
        assert raised.value.indefinite is indefinite


@pytest.mark.parametrize(
    "value",
    [
        1,
        [1],
        [[]],
        [[0, b"engine", 0, None, None, None]],
        [[9, b"ban", 0, None, None, None, None]],
        [[0, b"magic", 0, None, None, None, None]],
        [[0, b"ban", 0, b"\xff", None, None, None]],
        [[0, b"ban", 0, None, None, -1, None]],
        [[0, b"ban", 0, None, None, None, [b"token_bucket:1", b"x"]]],
        [["0", b"ban", 0, None, None, None, None]],
    ],
)
def test_an_invalid_note_is_not_accepted(value: Any) -> None:
    assert read_notes(value, 2) is None
    codec = RemoteCodec("", lambda: 0)
    with pytest.raises(EngineError) as raised:
        codec.plain_answer([1, 1, 4, 0, 0, 0, value])
    assert raised.value.indefinite
