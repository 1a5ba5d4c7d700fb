"""Servers as fixtures: started once, clean for every test.

A server that cannot be started is a reason to skip, with the remedy, on the machine of a person; in
CI it is a failure, so that no proof is left out unseen. Each worker of a parallel run has servers of
its own.

The servers are shared: a test may kill, stop and fill them. One that changes settings or roles
starts its own with `standalone`, in a few hundredths of a second.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.servers.etcd import HAS_3_5, Etcd, etcd, etcd_program
from tests.servers.machines import NotRootError
from tests.servers.process import NotInstalledError
from tests.servers.redis import (
    FLAVOURS,
    Cluster,
    RedisServer,
    SentinelGroup,
    cluster,
    sentinel,
    standalone,
)

_NEWEST = "valkey-9"
_SHARED = ("redis_server", "redis_sentinel", "redis_cluster")


def on_flavours(fixture: str, *names: str) -> pytest.MarkDecorator:
    """Mark a test to run on these flavours of a fixture; on all of them if none is named."""
    return pytest.mark.parametrize(fixture, names or list(FLAVOURS), indirect=True)


def on_etcd_versions(*, always: bool = False) -> pytest.MarkDecorator:
    """Mark a test that kills no server of etcd to run on 3.5, too: where `HEADGATE_LONG` is set, or always."""
    both = always or bool(os.environ.get("HEADGATE_LONG"))
    versions = ("3.4", "3.5") if both and HAS_3_5 else ("3.4",)
    return pytest.mark.parametrize("etcd_version", versions)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Skip the test if something in the block is not installed; in CI let it fail, unless it takes root."""
    try:
        yield
    except NotInstalledError as missing:
        if os.environ.get("CI") == "true" and not isinstance(missing, NotRootError):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[Callable[[str], RedisServer]]:
    """Give the one server of a flavour, started when it is first asked for."""
    running: dict[str, RedisServer] = {}
    with contextlib.ExitStack() as stack:

        def get(flavour: str) -> RedisServer:
            if flavour not in running:
                running[flavour] = stack.enter_context(standalone(flavour))
            return running[flavour]

        yield get


# The session is the widest scope, so that property tests may ask for it: they run one test function
# many times, and refuse what would be made only once for all of those.
@pytest.fixture(scope="session", params=list(FLAVOURS))
def redis_server(
    request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]
) -> RedisServer:
    """A server alone, of every flavour in turn; running and empty when the test begins."""
    with installed():
        return redis_servers(request.param)


@pytest.fixture(scope="module")
def redis_sentinel(request: pytest.FixtureRequest) -> Iterator[SentinelGroup]:
    """A master, two replicas and three Sentinels; whole and empty when the test begins."""
    with installed(), sentinel(getattr(request, "param", _NEWEST)) as group:
        yield group


@pytest.fixture(scope="module")
def redis_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three masters with a replica each; whole and empty when the test begins."""
    with installed(), cluster(getattr(request, "param", _NEWEST)) as group:
        yield group


@pytest.fixture
def etcd_version() -> str:
    """The one that bears to be killed; `on_etcd_versions` names others."""
    return "3.4"


@pytest.fixture(scope="module")
def etcd_clusters() -> Iterator[Callable[[str], Etcd]]:
    """Give three servers of a version, started when they are first asked for."""
    running: dict[str, Etcd] = {}
    with contextlib.ExitStack() as stack:

        def get(version: str) -> Etcd:
            if version not in running:
                running[version] = stack.enter_context(etcd(3, program=etcd_program(version)))
            return running[version]

        yield get


@pytest.fixture
def etcd_cluster(etcd_clusters: Callable[[str], Etcd], etcd_version: str) -> Etcd:
    """Three servers of etcd, whole when the test begins."""
    with installed():
        cluster = etcd_clusters(etcd_version)
    cluster.heal()
    return cluster


@pytest.fixture(autouse=True)
def _whole_and_empty(request: pytest.FixtureRequest) -> None:
    """Undo what the last test did to the servers that this one uses."""
    for name in _SHARED:
        if name in request.fixturenames:
            server: RedisServer | SentinelGroup | Cluster = request.getfixturevalue(name)
            server.heal()
            server.flush()
