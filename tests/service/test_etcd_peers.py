"""Nodes on etcd ask each other: with tokens and TLS, and nobody else may."""

from __future__ import annotations

import contextlib
import socket
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow
from headgate.engines.etcd.kind import KIND
from headgate.engines.registry import NodeDoor
from headgate.engines.remote.engine import RemoteEngine
from headgate.errors import ConfigError
from headgate.service.security.tokens import new_token
from tests.servers.etcd import Etcd, etcd
from tests.servers.fixtures import installed
from tests.servers.process import HOST, free_ports, wait_until
from tests.servers.tls import make_certificates
from tests.service.resp_node import RespNode, resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMIT = FixedWindow(1, 86_400_000_000)
KEYS = [f"key{number}" for number in range(40)]


@pytest.fixture(scope="module")
def servers() -> Iterator[Etcd]:
    with installed(), etcd(1) as started:
        yield started


def shards(node: RespNode) -> int:
    engine: Any = node.node.limiter.engine.unguarded
    return int(engine.nodes.gauges().get("etcd_shards", 0))


@contextlib.contextmanager
def two_nodes(url: str, **settings: Any) -> Iterator[tuple[RespNode, RespNode]]:
    """Two nodes that have shared the shards between them."""
    first_port, second_port = free_ports(2)
    with (
        resp_node(url=url, **settings | {"resp_port": first_port}) as first,
        resp_node(url=url, **settings | {"resp_port": second_port}) as second,
    ):
        wait_until(
            lambda: (shards(first), shards(second)) == (4, 4), "both have shards", within_s=30
        )
        yield first, second


def said_by(node: RespNode, authority: Path, *lines: bytes) -> bytes:
    """What a stranger is told who sends these commands over TLS."""
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((HOST, node.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as sock,
    ):
        for line in lines:
            sock.sendall(line + b"\r\n")
        said = b""
        while said.count(b"\r\n") < len(lines):
            said += sock.recv(4_096)
        return said


def test_nodes_call_each_other_with_tokens_and_tls_and_other_clients_cannot(
    servers: Etcd, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    made = {role: new_token(role, role, now=datetime.now(UTC)) for role in ("checker", "operator")}
    kept = ",".join(f"sha256:{role}:{one.name}:{one.sha256}" for role, (_, one) in made.items())
    token_file = tmp_path / "token"
    token_file.write_text(made["operator"][0])
    url = (
        f"etcd://{servers.hosts}/peers?shards=8&deadline=5"
        f"&peer_token_file={token_file}&peer_ca_file={files.authority}"
    )
    settings: dict[str, Any] = {
        "tokens": kept,
        "check_needs_token": True,
        "tls_cert": str(files.server),
        "tls_key": str(files.server_key),
    }
    checker = made["checker"][0]
    with two_nodes(url, **settings) as nodes:
        given = []
        for node in nodes:
            where = f"headgates://:{checker}@{HOST}:{node.port}?ca_file={files.authority}"
            engine = RemoteEngine(where)
            hit = engine.bind(LIMIT)
            given.append(sum(bool(hit(key, 1)) for key in KEYS))
            engine.close()
        assert given == [len(KEYS), 0]
        question = b"HG.PEER clock 0"
        assert b"NOAUTH" in said_by(nodes[0], files.authority, question)
        assert b"NOPERM" in said_by(
            nodes[0], files.authority, b"AUTH " + checker.encode(), question
        )


def test_a_node_that_asks_for_tokens_says_which_its_peers_show() -> None:
    door = NodeDoor("10.0.0.1:6390", tls=True, needs_token=True)
    with pytest.raises(ConfigError, match="peer_token_file"):
        KIND.for_node("etcd://h", door)
    url = KIND.for_node("etcd://h?peer_token_file=f", door)
    assert url == "etcd://h?peer_token_file=f&listen=10.0.0.1:6390&peer_tls=yes"
    plain = NodeDoor("10.0.0.1:6390", tls=False, needs_token=False)
    assert KIND.for_node("etcd://h", plain) == "etcd://h?listen=10.0.0.1:6390"
    assert KIND.for_node("etcd://h?listen=a:1", plain) == "etcd://h?listen=a:1"
