"""The URL of a source of rules.

    rules.yaml    file:rules.yaml    file:///etc/headgate/rules.yaml
    zookeeper://user:password@host:2181,host:2181/config/ratelimit/rules?acl=private
    etcd://user:password@host:2379,host:2379/config/ratelimit/rules?ca_file=ca.pem

Passwords never show in a repr, a log or an error; `password_file` keeps them off the command line too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ..._query import one_of, read_query, seconds_between, yes_or_no
from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_PATH: Final = "/config/ratelimit/rules"
DEFAULT_PORT: Final = {"zookeeper": 2181, "etcd": 2379}
ACLS: Final = ("private", "readable", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A parsed and checked URL."""

    scheme: str
    """`file`, `zookeeper` or `etcd`."""
    path: str
    hosts: tuple[str, ...] = ()
    """Each with its port."""
    username: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file:{self.path}"
        return f"{self.scheme}://{','.join(self.hosts)}{self.path}"


SECONDS: Final = seconds_between(0.05, 3600)
COMMON: Final[Mapping[str, Callable[[str], Any]]] = {
    "timeout": SECONDS,
    "tls": yes_or_no,
    "ca_file": str,
    "cert_file": str,
    "key_file": str,
    "password_file": str,
}
OPTIONS: Final[Mapping[str, Mapping[str, Callable[[str], Any]]]] = {
    "file": {},
    "zookeeper": {
        **COMMON,
        "session_timeout": SECONDS,
        "acl": one_of(dict(zip(ACLS, ACLS, strict=True))),
    },
    "etcd": COMMON,
}


def parse_location(where: str | Path) -> Location:
    """Parse a URL or a path; every mistake is a `ConfigError` that repeats no password."""
    if isinstance(where, Path):
        return Location(scheme="file", path=str(where))
    scheme = where.partition(":")[0].lower() if ":" in where else ""
    if scheme == "file":
        return _file(where)
    if "://" not in where:
        if not where:
            raise ConfigError("the source of the rules is empty; give a file or a URL")
        return Location(scheme="file", path=where)
    if scheme not in OPTIONS:
        raise ConfigError(
            f"{scheme!r} is not a source of rules; use file:, zookeeper:// or etcd://"
        )
    return _servers(scheme, where)


def _file(where: str) -> Location:
    rest = where[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ConfigError("write a file as file:rules.yaml or file:///etc/rules.yaml")
        rest = slash + path
    if not rest:
        raise ConfigError("file: needs a path, such as file:rules.yaml")
    return Location(scheme="file", path=unquote(rest))


def _servers(scheme: str, where: str) -> Location:
    try:
        parts = urlsplit(where)
    except ValueError:  # Its message quotes the URL.
        raise ConfigError(
            f"the {scheme} URL is invalid; check the brackets of its address"
        ) from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(
            f"the {scheme} URL is invalid; in a name or password write / as %2F, ? as %3F, "
            "# as %23 and @ as %40"
        )
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    options = _options(scheme, parts.query)
    return Location(
        scheme=scheme,
        path=_path(scheme, unquote(parts.path)),
        hosts=tuple(_host(scheme, host) for host in (hosts or "localhost").split(",")),
        username=unquote(username),
        password=_password(unquote(username), unquote(password), options),
        options=options,
    )


def _path(scheme: str, path: str) -> str:
    path = path.rstrip("/") or DEFAULT_PATH
    if any(part in ("", ".", "..") for part in path.split("/")[1:]) or "\0" in path:
        raise ConfigError(
            f"the path of the {scheme} URL has an empty part, '.' or '..' in it; write it like "
            f"{DEFAULT_PATH}"
        )
    return path


def _host(scheme: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT[scheme])
    # The text is not repeated: it may contain a password that was not escaped.
    if not host:
        raise ConfigError(f"the {scheme} URL has no host")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 1 <= int(port) <= 65_535):
        raise ConfigError(f"a port in the {scheme} URL must be a number from 1 to 65535")
    return f"{host}:{port}"


def _options(scheme: str, query: str) -> dict[str, Any]:
    options = read_query(query, OPTIONS[scheme])
    if options.get("tls") is False and "ca_file" in options:
        raise ConfigError("ca_file needs TLS, but tls=no turns it off; leave one out")
    if ("cert_file" in options) != ("key_file" in options):
        raise ConfigError("cert_file and key_file belong together; give both")
    return options


def _password(username: str, password: str, options: dict[str, Any]) -> str:
    file = options.pop("password_file", None)
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


def uses_tls(location: Location) -> bool:
    """Whether to encrypt the connection: on request, or if an authority or certificate is given."""
    options = location.options
    return bool(options.get("tls", "ca_file" in options or "cert_file" in options))
