"""etcd: one server, or three that elect a leader within half a second."""

import contextlib
import json
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import HOST, NotInstalledError, Server, free_ports, wait_until
from tests.servers.tls import Certificates, make_certificates

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 # Where there is one, no disk makes an election late.


@dataclass(slots=True)
class Etcd:
    """Servers that agree. `call` asks one through its JSON gateway, with no client of ours."""

    nodes: list["EtcdNode"]
    certificates: Certificates | None = None

    @property
    def hosts(self) -> str:
        """Every server's address, as a URL wants them."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

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
        self, command: Sequence[str], folder: Path, port: int, certificates: Certificates | None
    ) -> None:
        super().__init__(command, folder=folder, ready=lambda: True)
        self.port = port
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
            f"{scheme}://{HOST}:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=5.0, context=self._tls) as reply:  # noqa: S310
            return json.load(reply)

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
def etcd(count: int = 3, *, tls: bool = False, options: Sequence[str] = ()) -> Iterator[Etcd]:
    """A cluster of `count` servers; with `tls` they take only clients that have a certificate."""
    program = shutil.which("etcd")
    if program is None:
        raise NotInstalledError("there is no etcd: make servers, or apt-get install etcd-server")
    where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory("-headgate", dir=where)))
        certificates = make_certificates(folder) if tls else None
        free = free_ports(2 * count)
        ports, peers = free[:count], free[count:]
        members = ",".join(f"n{at}=http://{HOST}:{peer}" for at, peer in enumerate(peers))
        nodes = []
        for at, (port, peer) in enumerate(zip(ports, peers, strict=True)):
            own = folder / f"n{at}"
            own.mkdir()
            url = f"{'https' if tls else 'http'}://{HOST}:{port}"
            command = [
                program,
                *("--name", f"n{at}", "--data-dir", str(own / "data")),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", f"http://{HOST}:{peer}"),
                *("--initial-advertise-peer-urls", f"http://{HOST}:{peer}"),
                *("--initial-cluster", members, "--initial-cluster-state", "new"),
                *("--initial-cluster-token", folder.name),
                *("--heartbeat-interval", "50", "--election-timeout", "500"),
                *("--logger", "zap", "--log-level", "warn"),
                *_tls_options(certificates),
                *options,
            ]
            nodes.append(EtcdNode(command, own, port, certificates))
        cluster = Etcd(nodes, certificates)
        for node in nodes:
            stack.callback(node.kill)  # When asked politely, a leader first looks for a successor.
            node.start()
        try:
            cluster.wait_until_whole()
        except TimeoutError as late:
            raise RuntimeError("\n".join(node.log[-2_000:] for node in nodes)) from late
        yield cluster


def _tls_options(certificates: Certificates | None) -> list[str]:
    if certificates is None:
        return []
    return [
        *("--cert-file", str(certificates.server), "--key-file", str(certificates.server_key)),
        *("--trusted-ca-file", str(certificates.authority), "--client-cert-auth"),
    ]
