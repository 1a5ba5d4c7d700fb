"""One Redis or Valkey process, and what a test can do to it.

`RedisServer.call` speaks through a client that is not ours and repeats nothing, so that what a test
asks of a server is what the server was asked.
"""

import contextlib
import functools
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.servers.clock import MovableClock
from tests.servers.process import HOST, Server, free_ports, wait_until
from tests.servers.redis.flavours import FLAVOURS
from tests.servers.tls import Certificates, make_certificates

if TYPE_CHECKING:
    import redis

# A setting as it stands in redis.conf; a sequence gives the setting several times.
Setting = str | int | Sequence[str]


class RedisServer(Server):
    """One Redis or Valkey process.

    It listens on `port` in the clear whatever else is configured, for tests to look inside.
    """

    options: tuple[str, ...] = ()

    def __init__(
        self,
        flavour: str,
        folder: Path,
        *,
        port: int,
        settings: Iterable[tuple[str, Setting]],
        clock: MovableClock | None = None,
    ) -> None:
        config = folder / "redis.conf"
        config.write_text("".join(_lines(settings)))
        super().__init__(
            [FLAVOURS[flavour].binary(), config, *self.options],
            folder=folder,
            ready=self._answers,
            environment=clock.environment if clock else None,
        )
        self.flavour = flavour
        self.port = port
        self.url = f"redis://{HOST}:{port}/0"
        self.clock = clock
        self.socket: Path | None = None
        self.tls_port: int | None = None
        self.certificates: Certificates | None = None
        self._password = next(
            (str(value) for name, value in settings if name == "requirepass"), None
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()  # Nothing it holds is wanted any more, and asking takes a tenth of a second.

    def __repr__(self) -> str:
        return f"<{self.flavour} on port {self.port}>"

    @functools.cached_property
    def client(self) -> "redis.Redis":
        """A client that repeats nothing and gives replies as they are, decoded to text."""
        # Not at the top: this import takes longer than most tests, and every test run would pay.
        from redis import Redis  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415

        client = Redis(
            host=HOST,
            port=self.port,
            password=self._password,
            protocol=2,
            socket_timeout=5.0,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            encoding_errors="surrogateescape",  # Any bytes survive the way there and back.
        )
        client.response_callbacks.clear()
        return client

    def call(self, *command: str | bytes | float) -> Any:
        """Send one command; an error reply raises `redis.exceptions.ResponseError`."""
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call] # It is.

    def info(self, section: str = "everything") -> dict[str, str]:
        """Return the lines of INFO as a mapping."""
        lines = self.call("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def config_set(self, **settings: str | int) -> None:
        """Change settings of the running server: `config_set(maxmemory="1mb")`."""
        for name, value in settings.items():
            self.call("CONFIG", "SET", name.replace("_", "-"), value)

    def flush(self) -> None:
        """Remove every key and every loaded script and function."""
        self.call("FLUSHALL", "SYNC")
        self.flush_scripts()
        self.flush_functions()

    def flush_scripts(self) -> None:
        """Forget every loaded script: the next EVALSHA gets NOSCRIPT."""
        self.call("SCRIPT", "FLUSH", "SYNC")

    def flush_functions(self) -> None:
        """Forget every loaded library: the next FCALL does not find its function."""
        self.call("FUNCTION", "FLUSH", "SYNC")

    def follow(self, master: "RedisServer | None") -> None:
        """Become a replica of `master`, or a master if there is none; connections stay open."""
        address = (HOST, master.port) if master else ("NO", "ONE")
        self.call("REPLICAOF", *address)

    def is_master(self) -> bool:
        """Whether it takes writes, by its own account."""
        return bool(self.call("ROLE")[0] == "master")

    def in_sync(self) -> bool:
        """Whether it is a replica that has everything its master had when it connected."""
        replication = self.info("replication")
        return replication.get("master_link_status") == "up"

    def has_all_of(self, master: "RedisServer") -> bool:
        """Whether it is a replica that has applied every write of `master`.

        WAIT does not say this: it speaks of the writes of the connection that asks.
        """
        written = int(master.info("replication")["master_repl_offset"])
        applied = self.info("replication").get("slave_repl_offset", -1)
        return self.in_sync() and int(applied) >= written

    def kill(self) -> None:
        """End the process at once, as a crash would (SIGKILL)."""
        super().kill()
        self._forget_connections()

    def terminate(self, *, within_s: float = 5.0) -> None:
        """End the process the polite way, or by force if it does not listen."""
        super().terminate(within_s=within_s)
        self._forget_connections()

    def heal(self) -> None:
        """Let it run again, whether it was stopped or ended, and trust no connection from before."""
        self.resume()

        def answers() -> bool:
            # It dies with the thread that started it, which may only just have ended.
            if not self.running:
                self.start()
            return self._answers()

        wait_until(answers, f"{self} answers again", within_s=30.0)
        self._forget_connections()

    def _forget_connections(self) -> None:
        if "client" in self.__dict__:
            self.client.connection_pool.disconnect()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _lines(settings: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    for name, value in settings:
        for one in [value] if isinstance(value, str | int) else value:
            yield f"{name.replace('_', '-')} {one}\n"


def common_settings(port: int, folder: Path, config: dict[str, Setting]) -> dict[str, Setting]:
    """What every data node is told; `config` comes last and may overrule it."""
    return {
        "port": port,
        "bind": HOST,
        "dir": str(folder),
        "save": '""',
        "appendonly": "no",
        "enable-debug-command": "local",
        "repl-diskless-sync-delay": 0,  # Otherwise the first replica waits five seconds for others.
        **{name.replace("_", "-"): value for name, value in config.items()},
    }


@contextlib.contextmanager
def standalone(
    flavour: str,
    *,
    tls: bool = False,
    unix_socket: bool = False,
    movable_clock: bool = False,
    **config: Setting,
) -> Iterator[RedisServer]:
    """One server; what is asked for beside the plain port is in its attributes.

    `tls` gives `tls_port` and `certificates`, `unix_socket` gives `socket`, `movable_clock` gives
    `clock`. Every other name is a setting of redis.conf, with underscores for its dashes.
    """
    with contextlib.ExitStack() as stack:
        folder = own_folder(stack)
        port, tls_port = free_ports(2)
        certificates = make_certificates(folder) if tls else None
        if certificates:
            config = {
                "tls_port": tls_port,
                "tls_cert_file": str(certificates.server),
                "tls_key_file": str(certificates.server_key),
                "tls_ca_cert_file": str(certificates.authority),
                "tls_auth_clients": "optional",
                **config,
            }
        if unix_socket:
            config = {"unixsocket": str(folder / "socket"), **config}
        server = RedisServer(
            flavour,
            folder,
            port=port,
            settings=common_settings(port, folder, config).items(),
            clock=MovableClock(folder) if movable_clock else None,
        )
        server.certificates = certificates
        server.tls_port = tls_port if tls else None
        server.socket = folder / "socket" if unix_socket else None
        yield stack.enter_context(server)


def wait_until_answered(
    condition: Callable[[], bool], what: str, *, within_s: float = 20.0
) -> None:
    """As `wait_until`; a server that is down or closes the connection does not fulfil anything."""
    from redis.exceptions import RedisError  # noqa: PLC0415 # As in `RedisServer.client`.

    def holds() -> bool:
        try:
            return condition()
        except RedisError:
            return False

    wait_until(holds, what, within_s=within_s)


def own_folder(stack: contextlib.ExitStack) -> Path:
    """Make a folder that goes when `stack` does."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-")))
