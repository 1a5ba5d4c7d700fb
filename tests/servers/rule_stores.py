"""ZooKeeper and etcd as fixtures, for tests that only use them; one that kills servers starts its own.

Each test gets a path of its own, so that many can share one server.
"""

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from tests.servers.etcd import Etcd, etcd
from tests.servers.fixtures import installed
from tests.servers.zookeeper import ZooKeeper, zookeeper


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeper]:
    """One ZooKeeper server."""
    with installed(), zookeeper(1) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Etcd]:
    """One etcd server."""
    with installed(), etcd(1) as server:
        yield server


@pytest.fixture(scope="module", params=["zookeeper", "etcd"])
def rule_servers(request: pytest.FixtureRequest) -> Iterator[ZooKeeper | Etcd]:
    """Three servers of each kind in turn, whole when the module begins."""
    with installed(), contextlib.ExitStack() as stack:
        if request.param == "zookeeper":
            yield stack.enter_context(zookeeper(3))
        else:
            yield stack.enter_context(etcd(3))


@pytest.fixture(params=["zookeeper", "etcd"])
def rules_url(request: pytest.FixtureRequest) -> str:
    """A place for rules that nobody else uses, in each kind of store."""
    server: ZooKeeper | Etcd = request.getfixturevalue(f"{request.param}_server")
    return fresh_url(server)


def fresh_url(server: ZooKeeper | Etcd, options: str = "") -> str:
    """A path that nobody else uses."""
    scheme = "zookeeper" if isinstance(server, ZooKeeper) else "etcd"
    return f"{scheme}://{server.hosts}/test-{uuid.uuid4().hex}/rules{options}"
