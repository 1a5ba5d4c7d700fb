"""What callers of the Redis protocol name makes nothing grow without bound, and nothing sacred forgotten."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from headgate import Charge, FixedWindow
from headgate.algorithms import Calendar, CalendarWindow
from headgate.charge import ChargeSet
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.limit_numbers import packed_limit
from headgate.engines.remote import scopes
from headgate.engines.remote.codec import RemoteCodec
from headgate.rate import limits_of
from headgate.service.resp import limits as resp_limits
from headgate.service.telemetry.recorder import MAX_SERIES
from tests.servers.process import HOST, free_ports
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.algorithms import Limit
    from tests.service.resp_node import RespNode

DAY_US = 86_400_000_000


def command(*words: str | bytes | int) -> bytes:
    """A command as it is sent."""
    sent = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in sent)


def take(limit: Limit, *keys: str, namespace: str = "", rule: str | None = None) -> bytes:
    """A packed call of one unit for each key."""
    where = "-" if rule is None else f"={rule}"
    before = f"hg:s{namespace}:{where}:{limit.identity.replace(':', '.')}:="
    names = [before + key for key in keys]
    return command("HG", "take", len(names), *names, packed_limit(limit, 0))


class Asking:
    """A client."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = sock.makefile("rb")

    def reply(self) -> list[bytes]:
        """The next reply, flat: an error, or numbers and words."""
        first = self._lines.readline().rstrip()
        if first[:1] == b"$" and first != b"$-1":
            return [self._lines.readline().rstrip()]
        if first[:1] != b"*":
            return [first]
        return [part for _ in range(int(first[1:])) for part in self.reply()]

    def ask(self, *commands: bytes) -> list[list[bytes]]:
        """The replies to these, sent in one go."""
        self._sock.sendall(b"".join(commands))
        return [self.reply() for _ in commands]


@contextlib.contextmanager
def asking(node: RespNode) -> Iterator[Asking]:
    with socket.create_connection((HOST, node.port), 20) as sock:
        yield Asking(sock)


@pytest.mark.parametrize("name", ["HG.HIT", "CL.THROTTLE"])
def test_neighbours_without_a_key_get_an_error_each_and_others_their_answer(name: str) -> None:
    with resp_node() as node, asking(node) as client:
        before, first, second, after = client.ask(
            command("HG.HIT", "key", "10/day"), command(name), command(name), command("PING")
        )
    assert before[:3] == [b":1", b":10", b":9"]
    assert first[0].startswith(b"-ERR wrong number of arguments")
    assert second == first
    assert after == [b"+PONG"]


@pytest.mark.parametrize(
    "words",
    [
        ("HG.HIT", "key", "10/day", *("COST", "1") * 3),
        ("HG.PEEK", "key", "10/day", *("COST", "1") * 3),
        ("HG.RESET", "key", "10/day", *("ALGORITHM", "fixed_window") * 2),
        ("HELLO", "3", *("SETNAME", "me") * 20_000),
        ("COMMAND", "INFO", *("hg",) * 20_000),
        ("CLIENT", *("SETNAME",) * 20_000),
    ],
    ids=lambda words: words[0],
)
def test_a_command_with_more_words_than_it_has_a_use_for_is_refused(words: tuple[str, ...]) -> None:
    with resp_node() as node, asking(node) as client:
        (refused,) = client.ask(command(*words))
    assert refused[0].startswith(b"-ERR wrong number of arguments")


def test_rates_that_stand_for_many_limits_are_not_kept_twice() -> None:
    many = ",".join(f"9/{days} days" for days in range(1, 70))
    with resp_node() as node, asking(node) as client:
        commands = resp_limits.LimitCommands(node.node, None, None)  # type: ignore[arg-type]
        (answer,) = client.ask(command("HG.HIT", "key", many))
        for text in (many, "9/day"):
            commands._hit([b"HG.HIT", b"key", text.encode()])
    assert answer[:3] == [b":1", b":9", b":8"]
    assert [one.limits for one in commands._hits.values()] == [limits_of("9/day")]


def test_no_request_has_more_limits_than_one_may_have() -> None:
    many = ",".join(f"9/{number}h" for number in range(1, 130))
    with resp_node() as node, asking(node) as client:
        (refused,) = client.ask(command("HG.HIT", "key", many))
    assert refused[0].startswith(b"-ERR one request may have at most 128 limits")


def test_the_beginning_of_a_name_is_short() -> None:
    limit = FixedWindow(9, DAY_US)
    with resp_node() as node, asking(node) as client:
        long, short = client.ask(
            take(limit, "key", rule="r" * 4_096), take(limit, "key", rule="r" * 1_000)
        )
    assert b"namespace, rule and limit have more than 4096 bytes" in long[0]
    assert short[1:3] == [b":1", b":8"]


def test_a_calendar_is_packed_in_as_many_numbers_as_any_other_window() -> None:
    limit = CalendarWindow(9, Calendar("day", "UTC", 1))
    good = take(limit, "key")
    packed = packed_limit(limit, 0)
    long = packed + bytes(8)
    bad = good.replace(b"$%d\r\n%b" % (len(packed), packed), b"$%d\r\n%b" % (len(long), long))
    with resp_node() as node, asking(node) as client:
        allowed, refused = client.ask(good, bad)
    assert allowed[1:3] == [b":1", b":8"]
    assert refused[0].startswith(b"-ERR the limit of 'fixed_window:day")


def test_tokens_are_as_short_as_keys() -> None:
    codec = RemoteCodec("", lambda: 0)

    def reserve(token: str) -> bytes:
        request = ChargeSet((Charge("key", FixedWindow(9, DAY_US)),), reserve_us=1, token=token)
        return command(*codec.command((b"HG", b"decide"), [codec.part(request)]))

    with resp_node() as node, asking(node) as client:
        long, short = client.ask(reserve("t" * 8_193), reserve("t" * 8_192))
    assert long == [b"-ERR a token has at most 8192 bytes"]
    assert short[1:3] == [b":1", b":8"]


def test_rules_that_callers_make_up_do_not_pile_up_in_the_figures() -> None:
    limit = FixedWindow(9, DAY_US)
    with resp_node() as node, asking(node) as client:
        for start in range(0, 3 * MAX_SERIES, 100):
            calls = [take(limit, "key", rule=f"r{start + more}") for more in range(100)]
            assert all(answer[1] == b":1" for answer in client.ask(*calls))
        recorder = node.node.recorder
        assert len(recorder._checks) <= 2 * MAX_SERIES + 1
        assert len(recorder._by_rule) <= 2 * MAX_SERIES + 1
        assert recorder.totals.requests == 3 * MAX_SERIES


def test_limits_in_many_namespaces_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "MAX_BOUND", 100)
    with resp_node() as node, asking(node) as client:
        commands = node.commands
        for number in range(50):
            calls = [
                take(FixedWindow(9 + more, DAY_US), "key", namespace=f"n{number}")
                for more in range(20)
            ]
            assert all(answer[1] == b":1" for answer in client.ask(*calls)[:9])
        kept = commands._packed.scopes
        assert sum(one.bound for one in kept._scoped.values()) <= 220


def test_while_the_store_is_away_no_namespace_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scopes, "MAX_SCOPES", 8)
    (port,) = free_ports(1)
    behind = AsyncRedisEngine(f"redis://{HOST}:{port}?deadline=0.2")
    limit = FixedWindow(3, DAY_US)

    def hit(namespace: str) -> list[bytes]:
        (answer,) = client.ask(take(limit, "key", namespace=namespace))
        return answer[:2]

    with resp_node(behind, on_error="fallback", nodes=1) as node, asking(node) as client:
        first = [hit("tenant")[1] for _ in range(4)]
        others = [hit(f"n{number}") for number in range(20)]
        again = [hit("tenant")[1] for _ in range(4)]
    assert first == [b":1", b":1", b":1", b":0"]
    assert again == [b":0"] * 4
    assert sum(other[0].startswith(b"-HGUNAVAILABLE") for other in others) == 13
