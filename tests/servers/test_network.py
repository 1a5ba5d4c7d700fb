"""A network of its own: what is cut is lost in both directions, and everything else arrives."""

from __future__ import annotations

import socket

import pytest

from tests.servers.fixtures import installed
from tests.servers.network import OTHER_SIDE, own_network
from tests.servers.process import HOST


def test_only_packets_to_the_cut_port_are_lost_and_they_arrive_once_it_is_restored() -> None:
    with installed(), own_network() as network, socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        ends = {}
        for source in (HOST, OTHER_SIDE):
            client = socket.create_connection((HOST, port), 5.0, source_address=(source, 0))
            ends[source] = (client, server.accept()[0])
        network.cut(OTHER_SIDE, port)
        for client, accepted in ends.values():
            for one in (client, accepted):
                one.settimeout(0.2)
                one.send(b"hello")
        here, there = ends[HOST], ends[OTHER_SIDE]
        assert [one.recv(5) for one in here] == [b"hello", b"hello"]
        for one in there:
            with pytest.raises(TimeoutError):
                one.recv(5)
        network.mend()
        for one in there:
            one.settimeout(20.0)
            assert one.recv(5) == b"hello"
        for one in (*here, *there):
            one.close()
