"""ZooKeeper: one server, or an ensemble of three; each is a Java process that starts in about a second."""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import HOST, NotInstalledError, Server, free_ports, wait_until
from tests.servers.tls import Certificates, make_certificates

JAR = Path("/usr/share/java/zookeeper.jar")
LOGGER = Path("/usr/share/java/slf4j-simple.jar")
NETWORK = ":".join(map(str, Path("/usr/share/java").glob("netty-*.jar")))  # TLS needs it.
TICK_MS = 500  # A session can then be as short as one second.


@dataclass(slots=True)
class ZooKeeper:
    """Servers that agree, and what a test can do to them."""

    nodes: list["ZooKeeperNode"]
    certificates: Certificates | None = None

    @property
    def hosts(self) -> str:
        """Every server's address, as a URL wants them."""
        return ",".join(f"{HOST}:{node.tls_port or node.port}" for node in self.nodes)

    @property
    def leader(self) -> "ZooKeeperNode":
        """The server that leads."""
        return next(node for node in self.nodes if node.mode() in {"leader", "standalone"})

    def kill_leader(self) -> "ZooKeeperNode":
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
        """Wait until one leads and everybody else follows."""
        followers = ["follower"] * (len(self.nodes) - 1)
        wanted = [*followers, "leader"] if followers else ["standalone"]
        wait_until(
            lambda: sorted(node.mode() for node in self.nodes) == wanted,
            "the ensemble has a leader",
            within_s=60.0,
        )


class ZooKeeperNode(Server):
    """One ZooKeeper process."""

    def __init__(self, folder: Path, port: int, settings: Mapping[str, str | int]) -> None:
        java = shutil.which("java")
        if java is None or not JAR.exists():
            raise NotInstalledError(
                "there is no ZooKeeper: make servers, or apt-get install libzookeeper-java "
                "default-jre-headless"
            )
        config = folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        super().__init__(
            [
                java,
                *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                *("-cp", f"{JAR}:{LOGGER}:{NETWORK}"),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                config,
            ],
            folder=folder,
            ready=lambda: True,
        )
        self.port = port
        self.tls_port = settings.get("secureClientPort")

    def __repr__(self) -> str:
        return f"<ZooKeeper on port {self.port}>"

    def mode(self) -> str:
        """What it takes itself for: leader, follower, standalone; or nothing, if it does not answer."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def ask(self, word: str) -> str:
        """Send one of the four-letter words."""
        reply = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=1.0) as link,
        ):
            link.sendall(word.encode())
            while piece := link.recv(65_536):
                reply += piece
        return reply.decode(errors="replace")


@contextlib.contextmanager
def zookeeper(count: int = 3, *, tls: bool = False) -> Iterator[ZooKeeper]:
    """An ensemble of `count` servers; with `tls` they take only clients that have a certificate."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-")))
        certificates = make_certificates(folder) if tls else None
        ports = free_ports(4 * count)
        members = {
            f"server.{at + 1}": f"{HOST}:{ports[count + at]}:{ports[2 * count + at]}"
            for at in range(count)
        }
        nodes = []
        for at in range(count):
            own = folder / str(at + 1)
            (own / "data").mkdir(parents=True)
            (own / "data" / "myid").write_text(f"{at + 1}\n")
            settings: dict[str, str | int] = {
                "tickTime": TICK_MS,
                "initLimit": 20,
                "syncLimit": 10,
                "dataDir": str(own / "data"),
                "clientPort": ports[at],
                "clientPortAddress": HOST,
                "admin.enableServer": "false",
                "4lw.commands.whitelist": "*",
                "maxClientCnxns": 0,
                "forceSync": "no",
                **(members if count > 1 else {}),
                **(_tls_settings(certificates, ports[3 * count + at]) if certificates else {}),
            }
            nodes.append(ZooKeeperNode(own, ports[at], settings))
        ensemble = ZooKeeper(nodes, certificates)
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        try:
            ensemble.wait_until_whole()
        except TimeoutError as late:
            raise RuntimeError("\n".join(node.log[-2_000:] for node in nodes)) from late
        yield ensemble


def _tls_settings(files: Certificates, port: int) -> dict[str, str | int]:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 # As in `tls`.

    key = form.load_pem_private_key(files.server_key.read_bytes(), None)
    as_java_likes_it = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    store = files.server.with_name("keystore.pem")
    store.write_bytes(as_java_likes_it + files.server.read_bytes())
    return {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": port,
        "secureClientPortAddress": HOST,
        "ssl.keyStore.location": str(store),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(files.authority),
        "ssl.trustStore.type": "PEM",
    }
