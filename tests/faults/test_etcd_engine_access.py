"""Who may count on etcd: TLS, users and their roles, and that no password shows anywhere."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from headgate import EngineError, FixedWindow
from headgate.engines.etcd.options import parse_url
from headgate.engines.etcd.sync import EtcdEngine
from headgate.errors import ConfigError
from tests.servers.etcd import Etcd, EtcdNode, etcd
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PASSWORD = "canary-pass-4711"  # noqa: S105
LIMIT = FixedWindow(3, 60_000_000)


def admitted(url: str) -> int:
    """How many of five hits pass."""
    engine = EtcdEngine(url)
    try:
        hit = engine.bind(LIMIT)
        return sum(bool(hit("key", 1)) for _ in range(5))
    finally:
        engine.close()


def test_only_who_has_a_certificate_counts_on_servers_that_ask_for_one() -> None:
    with installed(), etcd(1, tls=True) as servers:
        files = servers.certificates
        assert files is not None
        url = f"etcd://{servers.hosts}/tls?deadline={{}}&"
        own = f"cert_file={files.client}&key_file={files.client_key}"
        assert admitted(f"{url.format(10)}ca_file={files.authority}&{own}") == 3
        for options in ("", f"tls=yes&{own}", f"ca_file={files.authority}"):
            with pytest.raises(EngineError) as refused:
                admitted(url.format(1) + options)
            assert not refused.value.indefinite


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    """An etcd with a user who may use `/headgate/`, and one who may not."""
    with installed(), etcd(1) as servers:
        node = servers.nodes[0]
        node.call("/v3/auth/user/add", {"name": "root", "password": PASSWORD})
        node.call("/v3/auth/role/add", {"name": "root"})
        node.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        _add(node, "node", "/headgate/")
        _add(node, "stranger", "/other/")
        node.call("/v3/auth/enable", {})
        yield servers


def _add(node: EtcdNode, user: str, prefix: str) -> None:
    first = base64.b64encode(prefix.encode()).decode()
    end = base64.b64encode(prefix[:-1].encode() + b"0").decode()
    permission = {"permType": "READWRITE", "key": first, "range_end": end}
    node.call("/v3/auth/user/add", {"name": user, "password": PASSWORD})
    node.call("/v3/auth/role/add", {"name": user})
    node.call("/v3/auth/role/grant", {"name": user, "perm": permission})
    node.call("/v3/auth/user/grant", {"user": user, "role": user})


def test_a_user_of_etcd_counts_under_its_own_keys_alone(guarded: Etcd, tmp_path: Path) -> None:
    hosts = guarded.hosts
    assert admitted(f"etcd://node:{PASSWORD}@{hosts}/auth?deadline=10&compact=0") == 3
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    assert admitted(f"etcd://node@{hosts}/auth?deadline=10&password_file={file}") == 0
    for who in ("", f"stranger:{PASSWORD}@", f"node:{PASSWORD}x@"):
        with pytest.raises(EngineError) as refused:
            admitted(f"etcd://{who}{hosts}/auth?deadline=1")
        assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "etcd://user@h",
        "etcd://h:0",
        "etcd://h:99999",
        "etcd://,h",
        "etcd://h/a/b",
        "etcd://h?ttl=0",
        "etcd://h?consistency=maybe",
        "etcd://h?unconfirmed=5",
        "etcd://h?listen=nowhere",
        "etcd://h?cert_file=x",
        "etcd://h?tls=no&ca_file=x",
        "etcd://h?nonsense=1",
        f"etcd://u:{PASSWORD}@h?x={PASSWORD}",
        f"etcd://u:{PASSWORD}/#@h",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url(url)
    assert PASSWORD not in str(refused.value)
