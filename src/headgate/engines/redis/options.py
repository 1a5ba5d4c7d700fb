"""Options: the parsed and validated URL of a Redis.

    redis://user:password@host:6379/0          rediss:// with TLS        redis+unix:///run/redis.sock?db=0
    redis+sentinel://host:26379,host:26379/name            redis+cluster://host:6379,host:6379
    the same with valkey instead of redis

Options follow as a query: `?deadline=0.25&max_batch=128`. Passwords never show in a repr, a log or an error.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from ..._query import Expected, read_query, seconds_between, whole_between, yes_or_no
from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

Address: TypeAlias = tuple[str, int]
"""Host and port; a Unix socket is its path and 0."""


def shown(address: Address) -> str:
    """An address in the usual notation."""
    host, port = address
    return host if port == 0 else f"{host}:{port}"


TopologyName: TypeAlias = Literal["standalone", "sentinel", "cluster", "nodes"]

SCHEMES: Final[dict[str, tuple[TopologyName, bool]]] = {
    "redis": ("standalone", False),
    "rediss": ("standalone", True),
    "redis+unix": ("standalone", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
MAX_SECRET_BYTES: Final = 64
DEFAULT_PORT: Final = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class Options:
    """The address of a Redis, our credentials, and timeouts."""

    topology: TopologyName
    addresses: tuple[Address, ...]
    master: str = ""
    """The name of the master that Sentinels use."""
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)
    db: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    sentinel_tls: ssl.SSLContext | None = field(default=None, repr=False)
    deadline: float = 1.0
    """Seconds until a call without an answer fails."""
    decision_deadline: float | None = None
    """The same for decisions, after the start; `None` for no separate deadline."""
    connect_timeout: float = 1.0
    max_connections: int = 64
    """How many connections a blocking engine keeps to one server."""
    max_batch: int = 128
    """How many requests an async engine sends in one call."""
    max_in_flight: int = 4
    """How many such calls may be in flight at once."""
    deny_cache: bool = True
    """Whether denials are cached for as long as they certainly hold."""
    secret: bytes = field(default=b"", repr=False)
    hash_keys: bool = False
    receipts: bool = False
    """Whether decisions carry a receipt, for external checks of the engine."""

    @property
    def deciding(self) -> float:
        """Seconds that a decision may take with an established connection."""
        return self.deadline if self.decision_deadline is None else self.decision_deadline

    def tls_to(self, *, sentinel: bool) -> ssl.SSLContext | None:
        """The TLS context for connections to a Sentinel, or else to a server."""
        return self.sentinel_tls if sentinel else self.tls

    def __str__(self) -> str:
        return f"{self.topology} redis at {','.join(map(shown, self.addresses))}"


def parse_url(url: str) -> Options:
    """Parse a URL; every mistake is a `ConfigError` that does not repeat the password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # Its message quotes the URL.
        raise ConfigError("the Redis URL is invalid; check the brackets of its address") from None
    scheme = parts.scheme.replace("valkey", "redis")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(f"there is no engine {parts.scheme!r}; for Redis use {known}")
    topology, secure = SCHEMES[scheme]
    if not url.partition(":")[2].startswith("//"):
        raise ConfigError(
            f"the Redis URL is invalid; write two slashes, as in {parts.scheme}://localhost"
        )
    if parts.fragment or (scheme != "redis+unix" and "@" in parts.path + parts.query):
        raise ConfigError(
            "the Redis URL is invalid; in a name or password write / as %2F, ? as %3F, "
            "# as %23 and @ as %40"
        )
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    options = read_query(parts.query, QUERY_OPTIONS)
    options["decision_deadline"] = options.get("deadline")
    if options.get("hash_keys") and "secret" not in options:
        raise ConfigError(
            "hash_keys needs a secret: without one, anyone can guess keys by hashing them"
        )
    tls = tls_context(options, secure=secure)
    path = unquote(parts.path)
    addresses: tuple[Address, ...]
    if scheme == "redis+unix":
        if hosts or not path:
            raise ConfigError("a Unix socket is written redis+unix:///path/to/redis.sock")
        addresses = ((path, 0),)
    else:
        addresses = tuple(_address(host, topology) for host in (hosts or "localhost").split(","))
        _require_honoured(options, topology, path)
        options.update(_path_options(path.strip("/"), topology))
    if topology == "standalone" and len(addresses) > 1:
        raise ConfigError("several hosts need redis+cluster:// or redis+sentinel://")
    return Options(
        topology,
        addresses,
        username=unquote(username),
        password=unquote(password),
        tls=tls,
        sentinel_tls=tls if topology == "sentinel" else None,
        **options,
    )


def _require_honoured(options: dict[str, Any], topology: TopologyName, path: str) -> None:
    """Refuse options that would be ignored."""
    if "sentinel_password" in options and topology != "sentinel":
        raise ConfigError("sentinel_password needs a redis+sentinel:// URL")
    if "db" in options and topology == "cluster":
        raise ConfigError("a Cluster has database 0 only")
    if "db" in options and topology == "standalone" and path.strip("/"):
        raise ConfigError("the database is given twice")


def _path_options(path: str, topology: TopologyName) -> dict[str, Any]:
    if topology == "sentinel":
        if not path:
            raise ConfigError(
                "redis+sentinel:// needs the master's name: redis+sentinel://host/name"
            )
        return {"master": path}
    if topology == "cluster":
        if path not in ("", "0"):
            raise ConfigError("a Cluster has database 0 only")
        return {}
    return {"db": _whole("the database", path, 0, 1_000_000)} if path else {}


def _address(text: str, topology: TopologyName) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT[topology])
    host = host.strip("[]")
    if not host:
        raise ConfigError("the Redis URL has no host")
    return host, _whole("a port", port, 1, 65_535)


def _whole(what: str, text: str, low: int, high: int) -> int:
    # The text is not repeated: it may contain a password that was not escaped.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise ConfigError(f"{what} in a Redis URL must be a number from {low} to {high}")
    return int(text)


def _secret(text: str) -> bytes:
    if not 1 <= len(text.encode()) <= MAX_SECRET_BYTES:
        raise Expected(f"a string of 1 to {MAX_SECRET_BYTES} bytes")
    return text.encode()


SECONDS: Final = seconds_between(0.001, 3600)
COUNT: Final = whole_between(1, 65_535)
QUERY_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "db": lambda text: _whole("db", text, 0, 1_000_000),
    "deadline": SECONDS,
    "connect_timeout": SECONDS,
    "max_connections": COUNT,
    "max_batch": COUNT,
    "max_in_flight": COUNT,
    "deny_cache": yes_or_no,
    "secret": _secret,
    "hash_keys": yes_or_no,
    "receipts": yes_or_no,
    "sentinel_password": str,
    "ca_file": str,
    "cert_file": str,
    "key_file": str,
}


def tls_context(
    options: dict[str, Any], *, secure: bool, scheme: str = "rediss"
) -> ssl.SSLContext | None:
    """Verify the server's certificate and name, by the system's authorities or a given one."""
    ca, cert, key = (options.pop(name, None) for name in ("ca_file", "cert_file", "key_file"))
    if not secure:
        if ca or cert or key:
            raise ConfigError(f"ca_file, cert_file and key_file need a {scheme}:// URL")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise ConfigError(f"the certificates of the URL cannot be used: {error}") from error
    return context
