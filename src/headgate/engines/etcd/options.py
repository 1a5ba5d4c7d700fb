"""The options of an etcd engine, from its URL.

    etcd://user:password@h1:2379,h2:2379,h3:2379/cluster?consistency=exact&listen=10.0.0.1:6390

A semicolon separates the hosts of several etcd clusters: `etcd://a1,a2,a3;b1,b2,b3/cluster`. Shards are divided among
the clusters in the given order.

Passwords never show in a repr, a log or an error; `password_file` keeps them off the command line too.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ..._query import Expected, one_of, read_query, seconds_between, whole_between, yes_or_no
from ...errors import ConfigError
from .commits import CommitPolicy

if TYPE_CHECKING:
    from ..._query import Readers

DEFAULT_PORT: Final = 2379
MAX_KEYS: Final = 1_000_000
MAX_BYTES: Final = 536_870_912
PEER: Final = b"HG.PEER"
"""The command that nodes send to each other."""
CLOCK: Final = b"clock"
"""The call for the current time."""
LOOK: Final = b"look"
"""The call for a look at a request, packed as for `decide`."""
CLUSTER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise Expected("an address such as 10.0.0.1:6390, at which other nodes reach this one")
    return text


READERS: Final[Readers] = {
    "consistency": one_of({"exact": True, "leased": False}),
    "listen": _address,
    "owns": yes_or_no,
    "shards": whole_between(1, 4_096),
    "ttl": seconds_between(1, 3_600),
    "flush_events": whole_between(1, 1_000_000),
    "flush_ms": whole_between(1, 1_000),
    "unconfirmed": whole_between(1, 1_000_000),
    "deadline": seconds_between(0.05, 60),
    "compact": seconds_between(0, 86_400),
    "fence_dead_peers": yes_or_no,
    "max_keys": whole_between(1, 1_000_000_000),
    "tls": yes_or_no,
    "ca_file": str,
    "cert_file": str,
    "key_file": str,
    "password_file": str,
    "peer_token_file": str,
    "peer_tls": yes_or_no,
    "peer_ca_file": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The options in a URL, parsed and checked."""

    hosts: tuple[str, ...]
    more_hosts: tuple[tuple[str, ...], ...] = ()
    """The hosts of further etcd clusters."""
    cluster: str = "default"
    username: str = ""
    password: str = field(default="", repr=False)
    listen: str = ""
    """Where other nodes reach this one; without it, this node owns everything, or waits until the owner ends."""
    owns: bool = True
    """Whether it owns shards; otherwise it asks the nodes that do."""
    shards: int | None = None
    """The number of shards; the first node's choice applies to all, 64 by default."""
    ttl: float = 5.0
    """How long a silent node counts as alive."""
    deadline: float = 1.0
    """How long a caller waits at most."""
    compact: float = 30.0
    """How often etcd's history is compacted, in seconds; 0 for never."""
    fence_dead_peers: bool = True
    """Whether nodes whose port refuses connections are declared dead at once."""
    max_keys: int = MAX_KEYS
    max_bytes: int = MAX_BYTES
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    peer_token_file: str | None = None
    """A file with the token that other nodes require."""
    peer_tls: bool = False
    """Whether the nodes' Redis ports use TLS."""
    peer_ca_file: str | None = None
    policy: CommitPolicy = field(default_factory=CommitPolicy)

    def __str__(self) -> str:
        hosts = ";".join(",".join(one) for one in (self.hosts, *self.more_hosts))
        return f"etcd://{hosts}/{self.cluster}"

    @property
    def parts(self) -> list[EtcdOptions]:
        """The options for each etcd cluster alone."""
        return [replace(self, hosts=one, more_hosts=()) for one in (self.hosts, *self.more_hosts)]


def parse_url(url: str) -> EtcdOptions:
    """Parse a URL; every mistake is a `ConfigError` that repeats no password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("the etcd URL cannot be read; see the brackets of its address") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(
            "the etcd URL cannot be read; in a name or password write / as %2F, ? as %3F, "
            "# as %23 and @ as %40"
        )
    cluster = unquote(parts.path).strip("/") or "default"
    if not CLUSTER.fullmatch(cluster):
        raise ConfigError(
            "the path of the etcd URL names the cluster: letters, digits, '.', '_' and '-', at most 64"
        )
    given = read_query(parts.query, READERS)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    groups = [
        tuple(_host(host) for host in group.split(","))
        for group in (hosts or "localhost").split(";")
    ]
    if len(set(itertools.chain(*groups))) < sum(map(len, groups)) and len(groups) > 1:
        raise ConfigError("a host in the etcd URL belongs to one etcd cluster; it is named twice")
    return EtcdOptions(
        hosts=groups[0],
        more_hosts=tuple(groups[1:]),
        cluster=cluster,
        username=unquote(username),
        password=_password(unquote(username), unquote(password), given),
        policy=_policy(given),
        **_tls(given),
    )


def _policy(given: dict[str, Any]) -> CommitPolicy:
    exact = given.pop("consistency", True)
    numbers: dict[str, Any] = {}
    for option, name, scale in (
        ("flush_events", "flush_events", 1),
        ("flush_ms", "flush_s", 0.001),
        ("unconfirmed", "unconfirmed", 1),
    ):
        if option in given:
            if exact:
                raise ConfigError(f"the option {option!r} is for consistency=leased")
            numbers[name] = given.pop(option) * scale
    return CommitPolicy(exact=exact, **numbers)


def _tls(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("tls") is False and "ca_file" in given:
        raise ConfigError("ca_file asks for TLS and tls=no forbids it; leave one out")
    if ("cert_file" in given) != ("key_file" in given):
        raise ConfigError("cert_file and key_file belong together; give both")
    if given.get("owns") is False and "listen" in given:
        raise ConfigError(
            "a node that owns nothing is not asked by others; leave out listen or owns=no"
        )
    return {**given, "tls": given.get("tls", "ca_file" in given or "cert_file" in given)}


def _password(username: str, password: str, given: dict[str, Any]) -> str:
    file = given.pop("password_file", None)
    if file is not None:
        if password:
            raise ConfigError("the password is given twice: in the URL and as password_file")
        try:
            password = Path(file).read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the password_file {file} cannot be read: {error}") from None
    if bool(username) != bool(password):
        raise ConfigError("a user name and a password belong together; give both, or none")
    return password


def _host(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    # The text is not repeated: it may contain a password that was not escaped.
    if not host:
        raise ConfigError("a host is missing in the etcd URL")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 1 <= int(port) <= 65_535):
        raise ConfigError("a port in the etcd URL is a number from 1 to 65535")
    return f"{host}:{port}"
