"""The etcd engine passes the suite on a real etcd, in both modes, and on a newer one.

Each step of a program is a commit, so there are fewer programs than for engines that answer at once; the shard itself,
without etcd, plays the others (see `tests/conformance/test_etcd_shard.py`).
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.remote.engine import RemoteEngine
from headgate.testing import Blocking
from headgate.testing.conformance import EngineConformance
from tests.conformance.settled_by_token import SettledByToken
from tests.servers.etcd import HAS_3_5, Etcd, etcd, etcd_3_5
from tests.servers.fixtures import installed
from tests.servers.process import free_ports
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.testing import ManualClock

PROGRAMS = max(1, int(os.environ.get("HEADGATE_PROGRAMS", "250")) // 25)
CLUSTERS = itertools.count(1)

# A server is asked for every step of a program, and there are forty in each.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers() -> Iterator[Etcd]:
    with installed(), etcd(1) as started:
        yield started


@pytest.fixture(scope="module")
def newer_servers() -> Iterator[Etcd]:
    if not HAS_3_5:
        pytest.skip("etcd 3.5 comes as a wheel, for Linux on x86-64 only")
    with installed(), etcd(3, program=etcd_3_5()) as started:
        yield started


class EtcdConformance(EngineConformance):
    programs = PROGRAMS
    mode = ""

    @pytest.fixture
    def engine(self, servers: Etcd, clock: ManualClock) -> Iterator[Any]:
        url = f"etcd://{servers.hosts}/c{next(CLUSTERS)}?ttl=60&deadline=20&shards=8&{self.mode}"
        engine: Any = Blocking(AsyncEtcdEngine(url, clock=clock))
        yield SettledByToken(engine)
        engine.close()


class TestExact(EtcdConformance):
    mode = "consistency=exact"


class TestLeased(EtcdConformance):
    mode = "consistency=leased"


class TestNewer(EtcdConformance):
    """etcd 3.5, three servers. Others kill and stop 3.4 only: this one can lose data when it is killed."""

    @pytest.fixture
    def servers(self, newer_servers: Etcd) -> Etcd:
        return newer_servers

    def test_it_is_another_version(self, servers: Etcd) -> None:
        versions = {node.call("/version")["etcdserver"] for node in servers.nodes}
        assert versions == {"3.5.1"}


class TestForwarded(EngineConformance):
    """Every request goes to the node that owns its shard: the one that is asked owns nothing."""

    programs = PROGRAMS

    @pytest.fixture
    def engine(self, servers: Etcd, clock: ManualClock) -> Iterator[Any]:
        (port,) = free_ports(1)
        url = f"etcd://{servers.hosts}/c{next(CLUSTERS)}?ttl=60&deadline=20"
        owner = AsyncEtcdEngine(f"{url}&shards=8&listen=127.0.0.1:{port}", clock=clock)
        with resp_node(owner, resp_port=port) as behind:
            behind.wait(owner.list_keys())
            engine: Any = Blocking(AsyncEtcdEngine(f"{url}&owns=no", clock=clock))
            yield SettledByToken(engine)
            engine.close()


class TestRemote(EngineConformance):
    """The library asks a node that owns nothing, which asks the one that does."""

    programs = PROGRAMS

    @pytest.fixture
    def engine(self, servers: Etcd, clock: ManualClock) -> Iterator[Any]:
        (port,) = free_ports(1)
        url = f"etcd://{servers.hosts}/c{next(CLUSTERS)}?ttl=60&deadline=15"
        owner = AsyncEtcdEngine(f"{url}&shards=8&listen=127.0.0.1:{port}", clock=clock)
        asked = AsyncEtcdEngine(f"{url}&owns=no", clock=clock)
        with resp_node(owner, resp_port=port) as behind, resp_node(asked) as node:
            behind.wait(owner.list_keys())
            engine: Any = RemoteEngine(f"{node.url}?deadline=20", clock=clock)
            yield SettledByToken(engine)
            engine.close()
