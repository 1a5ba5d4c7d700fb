"""Settings: what an operator can say about a service, checked as one.

Each setting is a field below, with its help text. Where a value comes from (later wins): the default, the settings file, the
environment, the command line; `loading.py` reads those. A `Settings` that exists can be served with: what does not go together is
refused here, with the place that the bad value came from.
"""

from __future__ import annotations

import ipaddress
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..algorithms import ALGORITHMS, Concurrency
from ..errors import ConfigError, UsageError
from ..rate import Rate, limits_of
from ..rules.problem import RulesError
from ..rules.sources.base import SourceError
from .hosts import bare, is_loopback, open_to_everybody
from .secret import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ON_ERROR: Final = ("open", "closed")
BAD_PATHS: Final = ("deny", "pass")
DEFAULT: Final = "the default"


def _about(default: Any, text: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": text, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a service can be told.

    >>> Settings(port=9000, engine="redis://:secret@db/0").shown("engine")
    'redis://:***@db/0'
    """

    host: str = _about("127.0.0.1", "the address to listen on")
    port: int = _about(8080, "the port to listen on; 0 takes a free one")
    workers: int = _about(1, "processes that serve; more than one needs a shared engine")
    engine: str = _about(
        "memory://", "where counts live: a URL such as memory:// or redis://localhost", secret=True
    )
    namespace: str = _about("", "keys of two namespaces never meet")
    rules: str = _about("", "a rules file or source; without one, the starter rules", secret=True)

    default_limit: int = _about(100, "units per window for checks that name no limit")
    default_window: float = _about(60.0, "the window of such checks, in seconds")
    default_algorithm: str = _about("sliding_window", "how such checks are counted")
    on_error: str = _about(
        "open", "for rules that do not say: open or closed, when the store fails"
    )
    bad_paths: str = _about(
        "pass",
        "requests whose path can be read in two ways: deny, or pass to the rules without one",
    )

    trusted_proxies: tuple[str, ...] = _about((), "networks whose X-Forwarded-For is believed")
    allowed_hosts: tuple[str, ...] = _about(
        (), "names that Host may have without tokens, besides this machine's"
    )
    tokens: str = _about("", "the file of hashed access tokens")
    check_needs_token: bool = _about(default=False, text="whether checks need a token too")
    audit_log: str = _about("", "the file that every change is written to")
    board: str = _about("", "where nodes meet; the engine, if nothing is said", secret=True)
    node_id: str = _about("", "this node's name; made from host and port, if nothing is said")
    node_ttl: float = _about(
        30.0, "seconds after which a silent node is Down; after four times as long it is gone"
    )
    heartbeat: float = _about(10.0, "seconds between a node's signs of life")

    header_timeout: float = _about(5.0, "seconds a client has for the head of a request")
    body_timeout: float = _about(10.0, "seconds it then has for the body")
    idle_timeout: float = _about(60.0, "seconds a connection may do nothing")
    max_body: int = _about(65_536, "bytes that the body of a check may have")
    max_batch_body: int = _about(1_048_576, "bytes that the body of a batch may have")
    max_connections_per_ip: int = _about(0, "connections from one address at a time; 0: any number")
    drain_delay: float = _about(0.0, "seconds to go on listening after SIGTERM, not ready any more")
    drain_timeout: float = _about(30.0, "seconds that answers in flight get after that")

    tls_cert: str = _about(
        "", "the certificate chain to serve with (PEM); read again when it changes"
    )
    tls_key: str = _about("", "its private key (PEM)")
    log_level: str = _about("info", "debug, info, warning or error")
    traces: float = _about(
        0.0,
        "the share of checks that OpenTelemetry is told of, 0 to 1; above 0 also all management",
    )

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value that is not a default came from, such as `HEADGATE_PORT`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", bare(self.host))
        self._require_numbers()
        self._require_words()
        if bool(self.tls_cert) is not bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            self._refuse(given, f"a certificate and its key come together; give {missing}, too")
        if self.workers > 1 and not self.shared_engine:
            self._refuse(
                "workers",
                f"{self.workers} workers that count in memory would admit every limit "
                f"{self.workers} times; give them an engine to share, such as --engine redis://localhost",
            )
        if not self.tokens and not is_loopback(self.host):
            self._refuse("host", open_to_everybody(self.host))

    @property
    def shared_engine(self) -> bool:
        """Whether several processes count together."""
        return not self.engine.startswith("memory:")

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self.tls_cert else "http"

    @property
    def store(self) -> str:
        """What holds the counts, in one word: `memory` or `redis`."""
        return "redis" if self.shared_engine else "memory"

    def url(self, port: int) -> str:
        """Where the service is found when it listens on `port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port}"

    def source(self, name: str) -> str:
        """Where a value came from."""
        return self.sources.get(name, DEFAULT)

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """What goes wrong in the block is this setting's fault, and told with where it came from.

        Rules that are wrong are told as they are: each fault has its own place.
        """
        try:
            yield
        except RulesError:
            raise
        except (ConfigError, UsageError, SourceError) as error:
            raise refusal(name, self.source(name), str(error)) from error

    def shown(self, name: str) -> str:
        """A value as it may be shown to anybody: without passwords."""
        value = getattr(self, name)
        if SETTINGS[name].metadata["secret"]:
            return redacted(value)
        return ", ".join(value) if isinstance(value, tuple) else str(value)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={self.shown(name)!r}" for name in self.sources)
        return f"Settings({told})"

    def _refuse(self, name: str, message: str) -> NoReturn:
        raise refusal(name, self.source(name), message)

    def _require_numbers(self) -> None:
        for name, low, high in RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                self._refuse(name, f"it lies between {low} and {high}, and {value} does not")
        if self.heartbeat >= self.node_ttl:
            self._refuse("heartbeat", f"it must be shorter than node_ttl, {self.node_ttl:g} s")

    def _require_words(self) -> None:
        if self.default_algorithm not in ALGORITHMS or self.default_algorithm == Concurrency.name:
            names = ", ".join(sorted(set(ALGORITHMS) - {Concurrency.name}))
            self._refuse("default_algorithm", f"{self.default_algorithm!r} is none of {names}")
        if self.on_error not in ON_ERROR:
            self._refuse("on_error", f"it is open or closed, not {self.on_error!r}")
        if self.bad_paths not in BAD_PATHS:
            self._refuse("bad_paths", f"it is deny or pass, not {self.bad_paths!r}")
        if self.log_level not in LOG_LEVELS:
            self._refuse("log_level", f"{self.log_level!r} is none of {', '.join(LOG_LEVELS)}")
        with self.blamed("default_window"):
            limits_of(Rate(1, self.default_window), self.default_algorithm)
        with self.blamed("default_limit"):
            limits_of(Rate(self.default_limit, self.default_window), self.default_algorithm)
        for network in self.trusted_proxies:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                self._refuse("trusted_proxies", f"{error}; write networks such as 10.0.0.0/8")


def refusal(name: str, source: str, message: str) -> ConfigError | UsageError:
    """What to raise about a value, with where it came from. One that was typed on the command line is wrong usage of that."""
    kind = UsageError if source.startswith("--") else ConfigError
    return kind(f"{name} (from {source}): {message}")


RANGES: Final = (
    ("port", 0, 65_535),
    ("workers", 1, 1_024),
    ("node_ttl", 1, 86_400),
    ("heartbeat", 0.1, 86_400),
    ("header_timeout", 0.01, 3_600),
    ("body_timeout", 0.01, 3_600),
    ("idle_timeout", 0.01, 86_400),
    ("max_body", 256, 16_777_216),
    ("max_batch_body", 256, 16_777_216),
    ("max_connections_per_ip", 0, 1_000_000),
    ("drain_delay", 0, 3_600),
    ("drain_timeout", 0, 3_600),
    ("traces", 0, 1),
)

SETTINGS: Final = {one.name: one for one in fields(Settings) if one.name != "sources"}
"""Every setting by its name."""
