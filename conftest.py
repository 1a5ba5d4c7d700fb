"""Run every example as a test: Python blocks in the README and the documentation, and docstrings.

The blocks of a page share a namespace, so it reads from top to bottom like a script; so do the docstrings of a module.
Each block of the README runs alone. Decision records quote code as it was, and are not run. A block that cannot run
here is preceded by `<!-- skip: next -->`.
"""

import gc
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.sybil import SybilCollection
from sybil.typing import Parser
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import fixed_ports
from tests.console_blocks import ConsoleBlockParser
from tests.python_blocks import AlonePythonBlockParser
from tests.servers.etcd import Etcd
from tests.servers.fixtures import (  # noqa: F401 # Pages and tests ask for these by name.
    _whole_and_empty,
    etcd_cluster,
    etcd_clusters,
    etcd_version,
    redis_cluster,
    redis_sentinel,
    redis_server,
    redis_servers,
)
from tests.servers.process import free_ports
from tests.servers.redis import Cluster, RedisServer, SentinelGroup
from tests.servers.rule_stores import (  # noqa: F401
    etcd_server,
    fresh_url,
    rule_servers,
    rules_url,
    zookeeper_server,
)
from tests.servers.zookeeper import ZooKeeper
from tests.service.running import service

# A pattern is matched from the right, so it holds at any depth below `path`.
in_markdown: list[Parser] = [PythonCodeBlockParser(), SkipParser()]
readme = Sybil(
    [AlonePythonBlockParser(), ConsoleBlockParser()],
    path=".",
    pattern="README.md",
    fixtures=["service_in_environment"],
)
SERVICE_PAGES = (
    *("tutorials/first-service.md", "how-to/run-the-service.md", "how-to/check-over-http.md"),
    "how-to/watch-the-dashboard.md",
    *("how-to/operate.md", "how-to/monitor.md"),
)
NODE_PAGES = ("how-to/use-the-redis-protocol.md", "how-to/use-remote-nodes.md")
pages = Sybil(
    in_markdown,
    path="docs",
    pattern="*.md",
    excludes=[
        *("how-to/verify-a-history.md", "explanation/adaptive.md"),
        *("decisions/*.md", "how-to/use-redis*.md", "how-to/rules-from-*.md", "how-to/use-etcd.md"),
        *("how-to/lease-limits.md", "how-to/manage-tokens.md", *SERVICE_PAGES, *NODE_PAGES),
    ],
)
# Pages about a store find a real one in the environment, as their reader does.
stores = [
    Sybil(in_markdown, path="docs", pattern=f"how-to/{page}.md", fixtures=[fixture])
    for page, fixture in [
        ("use-redis", "redis_in_environment"),
        ("lease-limits", "redis_in_environment"),
        ("use-redis-sentinel", "sentinel_in_environment"),
        ("use-redis-cluster", "cluster_in_environment"),
        ("use-etcd", "etcd_engine_in_environment"),
    ]
]
# So do those about places that keep rules; what is typed into a shell there is run as well.
places = [
    Sybil(
        [*in_markdown, ConsoleBlockParser()],
        path="docs",
        pattern=f"how-to/rules-from-{place}.md",
        fixtures=[fixture],
    )
    for place, fixture in [
        ("a-file", "in_a_folder"),
        ("zookeeper", "zookeeper_in_environment"),
        ("etcd", "etcd_in_environment"),
    ]
]
# Pages about the service find one running.
services = [
    Sybil(
        [*in_markdown, ConsoleBlockParser()],
        path="docs",
        pattern=page,
        fixtures=["service_in_environment"],
    )
    for page in SERVICE_PAGES
]
nodes = [
    Sybil(
        [*in_markdown, ConsoleBlockParser()],
        path="docs",
        pattern=page,
        fixtures=["node_in_environment"],
    )
    for page in NODE_PAGES
]
in_folders = [
    Sybil(
        [*in_markdown, ConsoleBlockParser()],
        path="docs",
        pattern=page,
        fixtures=["in_a_folder"],
    )
    for page in ("how-to/manage-tokens.md", "explanation/adaptive.md")
]
verifying = Sybil(
    [*in_markdown, ConsoleBlockParser()],
    path="docs",
    pattern="how-to/verify-a-history.md",
    fixtures=["in_a_folder", "service_in_environment"],
)
docstrings = Sybil(
    [DocTestParser()],
    path="src",
    pattern="*.py",
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = SybilCollection(
    [readme, pages, *stores, *places, *services, *nodes, *in_folders, verifying, docstrings]
).pytest()


@pytest.fixture
def redis_in_environment(
    redis_servers: Callable[[str], RedisServer],  # noqa: F811 - a fixture is asked for by its name
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_servers("redis-7.0").url)


@pytest.fixture
def sentinel_in_environment(
    redis_sentinel: SentinelGroup,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_ENGINE", redis_sentinel.url)


@pytest.fixture
def etcd_engine_in_environment(etcd_server: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HEADGATE_ENGINE", f"etcd://{etcd_server.hosts}/documented?deadline=10")


@pytest.fixture
def cluster_in_environment(
    redis_cluster: Cluster,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_ENGINE", redis_cluster.url)


@pytest.fixture(scope="module")
def in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One folder for the whole page: its blocks belong together."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("page")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        yield


@pytest.fixture(scope="module")
def zookeeper_in_environment(
    zookeeper_server: ZooKeeper,  # noqa: F811
    in_a_folder: None,  # noqa: ARG001 - it is enough to be there
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RULES", fresh_url(zookeeper_server))
        yield


@pytest.fixture(scope="module")
def etcd_in_environment(
    etcd_server: Etcd,  # noqa: F811
    in_a_folder: None,  # noqa: ARG001 - it is enough to be there
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RULES", fresh_url(etcd_server))
        yield


@pytest.fixture(scope="module")
def service_in_environment() -> Iterator[None]:
    with service() as running, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{running.port}")
        yield


@pytest.fixture(scope="module")
def node_in_environment() -> Iterator[None]:
    """A service that speaks the Redis protocol."""
    (port,) = free_ports(1)
    with service("--resp-port", str(port)), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("NODE", f"redis://127.0.0.1:{port}")
        monkeypatch.setenv("NODES", f"headgate://127.0.0.1:{port}")
        yield


fixed_ports.watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test or an example that uses a fixed port, whether or not it is taken just now."""
    fixed_ports.used.clear()
    outcome = yield
    assert not fixed_ports.used, f"take a port from free_ports instead: {fixed_ports.used}"
    return outcome


def pytest_collection_finish() -> None:
    """Thousands of tests are objects, too; without this, each collection of garbage would visit them all."""
    gc.collect()
    gc.freeze()


class Scheduling(LoadScopeScheduling):
    """Tests go to whichever process is free; the examples of one document stay together.

    So do all files with heavy tests: two that fill the machine with processes would only measure each other.
    (`--dist=loadgroup` would say the same, but xdist 3.8 marks groups in a way pytest 9.2 ignores.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if name.startswith("line:"):
            return file
        return "heavy" if is_heavy(file) else nodeid


@cache
def is_heavy(file: str) -> bool:
    """Whether some test of a file has the marker `heavy`: a scheduler is told names of tests, and not their markers."""
    return "pytest.mark.heavy" in Path(__file__).parent.joinpath(file).read_text("utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
