"""Newcomers are turned away, and those who came before are not."""

from __future__ import annotations

import errno
import select
import socket
import sys

import pytest

from headgate import UsageError
from headgate.service.process.listening import listen, refuse_new_connections
from headgate.service.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot do it")
HOST = "127.0.0.1"


def test_new_connections_are_refused_but_queued_ones_are_served() -> None:
    with listen(Settings(host=HOST, port=0)) as door:
        port: int = door.getsockname()[1]
        with socket.create_connection((HOST, port), timeout=5) as waiting:
            assert refuse_new_connections(door)
            with pytest.raises(TimeoutError):
                socket.create_connection((HOST, port), timeout=0.2)
            taken_in, _ = door.accept()
            with taken_in:
                waiting.sendall(b"asked")
                assert taken_in.recv(5) == b"asked"
                taken_in.sendall(b"answered")
                assert waiting.recv(8) == b"answered"


def test_a_client_that_was_turned_away_is_refused_once_the_port_is_closed() -> None:
    door = listen(Settings(host=HOST, port=0))
    port: int = door.getsockname()[1]
    refuse_new_connections(door)
    with socket.socket() as newcomer:
        newcomer.setblocking(False)  # noqa: FBT003
        assert newcomer.connect_ex((HOST, port)) == errno.EINPROGRESS
        door.close()
        select.select([], [newcomer], [], 10)
        assert newcomer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


@pytest.mark.parametrize("host", ["nobody.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_blamed_and_not_the_port(host: str) -> None:
    tokens = "sha256:admin:ann:" + "0" * 64
    with pytest.raises(UsageError) as refused:
        listen(Settings(host=host, port=0, tokens=tokens, sources={"host": "--host"}))
    assert str(refused.value).startswith(f"host (from --host): '{host}' is not an address of this ")


def test_an_answer_does_not_wait_until_the_one_before_it_is_acknowledged() -> None:
    with listen(Settings(host=HOST, port=0)) as door:
        port: int = door.getsockname()[1]
        with socket.create_connection((HOST, port), timeout=5), door.accept()[0] as taken_in:
            assert taken_in.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
