"""The settings of a service, validated as a whole.

Each setting is a field below, with its help text. Where a value comes from (later wins): the default, the settings
file, the environment, the command line; `settings_loading.py` reads those. A `Settings` object is always usable:
conflicting values are refused here, with the source of the bad value.
"""

from __future__ import annotations

import ipaddress
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..adaptive.selector import thresholds_of
from ..algorithms import ALGORITHMS, Concurrency
from ..engines.registry import kind_of
from ..errors import ConfigError, UsageError
from ..rate import Rate, limits_of
from ..regions.settings import read_regions
from ..rules.format.problems import RulesError
from ..rules.model import ON_ERROR
from ..rules.sources.base import SourceError
from .security.hosts import bare, is_loopback, open_to_everybody
from .security.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..adaptive.selector import Thresholds
    from ..engines.base import EngineDescription
    from ..engines.registry import EngineKind
    from ..regions.settings import RegionsSettings

SIMULATOR: Final = ("auto", "on", "off")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
BAD_PATHS: Final = ("deny", "pass")
DEFAULT: Final = "the default"


def _about(default: Any, text: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": text, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a service.

    >>> Settings(port=9000, engine="redis://:secret@db/0").shown("engine")
    'redis://:***@db/0'
    """

    host: str = _about("127.0.0.1", "the address to listen on")
    port: int = _about(8080, "the port to listen on; 0 takes a free one")
    resp_port: int = _about(0, "the port for the Redis protocol, on the same address; 0: none")
    workers: int = _about(1, "processes that serve; more than one needs a shared engine")
    engine: str = _about(
        "memory://", "where counts live: a URL such as memory:// or redis://localhost", secret=True
    )
    namespace: str = _about(
        "", "a prefix that keeps these keys separate from those of other namespaces"
    )
    rules: str = _about("", "a rules file or source; without one, the starter rules", secret=True)

    default_limit: int = _about(100, "units per window for checks without a limit")
    default_window: float = _about(60.0, "the window for checks without one, in seconds")
    default_algorithm: str = _about(
        "adaptive", "the algorithm for checks without one; adaptive follows the traffic"
    )
    thresholds: tuple[str, ...] = _about(
        (),
        "when adaptive limits switch, such as enter_burst_ratio=4, leave_burst_ratio=2, dwell=10",
    )
    on_error: str = _about(
        "fallback",
        "what to do while the store does not answer, unless a rule has its own on_error: fallback "
        "(admit this node's share), open, closed or raise",
    )
    nodes: int = _about(
        0,
        "the number of nodes that share the store, for their shares of a limit; 0: as counted on the board",
    )
    kill_switch: str = _about(
        "", "the file that turns limits off in an emergency; in memory by default"
    )
    bad_paths: str = _about(
        "deny",
        "what to do with an invalid path: deny, or pass, which applies only rules without a path pattern",
    )

    trusted_proxies: tuple[str, ...] = _about((), "networks whose X-Forwarded-For is trusted")
    allowed_hosts: tuple[str, ...] = _about(
        (), "host names to accept without tokens, besides this machine's own"
    )
    tokens: str = _about("", "the file of hashed access tokens")
    check_needs_token: bool = _about(default=False, text="whether checks also need a token")
    audit_log: str = _about("", "the file that every change is written to")
    board: str = _about(
        "", "the URL of the board; by default it is in the engine's store", secret=True
    )
    node_id: str = _about("", "this node's name; by default built from host and port")
    node_ttl: float = _about(
        30.0, "seconds after which a silent node is Down; after four times that it is removed"
    )
    heartbeat: float = _about(10.0, "seconds between a node's heartbeats")

    region: str = _about("", "this node's region; empty if there is only one")
    regions: str = _about(
        "",
        "the other regions with their nodes, such as us=headgate://10.0.0.7:6400,10.0.0.8:6400 asia=headgates://…",
        secret=True,
    )
    region_weights: tuple[str, ...] = _about(
        (),
        "the weights of regions, for their shares of limits, such as eu=2, us=1; 1 each by default",
    )
    region_interval: float = _about(0.2, "seconds between messages to another region")

    header_timeout: float = _about(5.0, "seconds a client has to send a request's headers")
    body_timeout: float = _about(10.0, "seconds it then has to send the body")
    idle_timeout: float = _about(60.0, "seconds a connection may be idle")
    max_body: int = _about(65_536, "the largest body of a check, in bytes")
    max_batch_body: int = _about(1_048_576, "the largest body of a batch, in bytes")
    max_connections_per_ip: int = _about(0, "the most open connections per address; 0: no limit")
    max_lag: float = _about(
        1.0, "seconds of event loop lag before checks are refused with 503; 0: never"
    )
    drain_delay: float = _about(0.0, "seconds to keep listening, but not ready, after SIGTERM")
    drain_timeout: float = _about(30.0, "seconds that requests in flight then have to finish")

    tls_cert: str = _about("", "the certificate chain (PEM); reloaded when it changes")
    tls_key: str = _about("", "its private key (PEM)")
    dashboard: bool = _about(default=True, text="whether / is the dashboard")
    viewers: int = _about(1_000, "the most viewers of the dashboard at a time")
    simulator: str = _about(
        "auto", "who may send traffic from the dashboard: on, off, or auto, which needs an operator"
    )
    log_level: str = _about("info", "debug, info, warning or error")
    traces: float = _about(
        0.0,
        "the share of checks to trace with OpenTelemetry, 0 to 1; above 0, all management requests, too",
    )

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The source of each value that is not a default, such as `HEADGATE_PORT`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", bare(self.host))
        self._require_numbers()
        self._require_words()
        if bool(self.tls_cert) is not bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            self._refuse(given, f"a certificate and its key belong together; set {missing}, too")
        if self.workers > 1 and not self.shared_engine:
            self._refuse(
                "workers",
                f"{self.workers} workers that count in memory would admit every limit "
                f"{self.workers} times; give them an engine to share, such as --engine redis://localhost",
            )
        if self.workers > 1 and self._engine_kind.one_per_service:
            self._refuse(
                "workers",
                f"each of {self.workers} workers would be a separate node that the others cannot reach; "
                "start a service for each node instead",
            )
        self._require_regions()
        if not self.tokens and not is_loopback(self.host):
            self._refuse("host", open_to_everybody(self.host))

    @property
    def shared_engine(self) -> bool:
        """Whether several processes share the counts."""
        return self._engine_kind.shared

    @property
    def _engine_kind(self) -> EngineKind:
        with self.attributing_errors("engine"):
            return kind_of(self.engine)

    def describe_engine(self) -> EngineDescription:
        """The engine's description of itself."""
        with self.attributing_errors("engine"):
            return kind_of(self.engine).describe(self.engine)

    def read_regions(self) -> RegionsSettings | None:
        """The regions; `None` if there is only one."""
        with self.attributing_errors("regions" if self.regions else "region"):
            return read_regions(
                self.region, self.regions, self.region_weights, self.region_interval, self.engine
            )

    def adaptive_thresholds(self) -> Thresholds:
        """When adaptive limits switch; unset thresholds have the defaults of `Thresholds`."""
        return thresholds_of(self.thresholds)

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self.tls_cert else "http"

    @property
    def store(self) -> str:
        """What stores the counts, in one word: `memory` or `redis`."""
        return self.describe_engine().store

    def url(self, port: int) -> str:
        """The URL of the service when it listens on `port`."""
        return f"{self.scheme}://{self.address(port)}"

    def address(self, port: int) -> str:
        """Host and port, in the usual notation."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port}"

    def source(self, name: str) -> str:
        """Where a value came from."""
        return self.sources.get(name, DEFAULT)

    @contextmanager
    def attributing_errors(self, name: str) -> Iterator[None]:
        """Report errors in the block as errors of this setting, with its source.

        A `RulesError` passes unchanged: each of its problems already has a place.
        """
        try:
            yield
        except RulesError:
            raise
        except (ConfigError, UsageError, SourceError) as error:
            raise refusal(name, self.source(name), str(error)) from error

    def shown(self, name: str) -> str:
        """A value without passwords."""
        value = getattr(self, name)
        if SETTINGS[name].metadata["secret"]:
            return redacted(value)
        return ", ".join(value) if isinstance(value, tuple) else str(value)

    def __repr__(self) -> str:
        shown_values = ", ".join(f"{name}={self.shown(name)!r}" for name in self.sources)
        return f"Settings({shown_values})"

    def _refuse(self, name: str, message: str) -> NoReturn:
        raise refusal(name, self.source(name), message)

    def _require_numbers(self) -> None:
        for name, low, high in RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                self._refuse(name, f"it must be between {low} and {high}, not {value}")
        if self.heartbeat >= self.node_ttl:
            self._refuse("heartbeat", f"it must be shorter than node_ttl, {self.node_ttl:g} s")

    def _require_regions(self) -> None:
        found = self.read_regions()
        if found is not None and found.urls and not self.resp_port:
            self._refuse(
                "regions",
                "other regions reach this one at its Redis protocol port; set resp_port, too",
            )

    def _require_words(self) -> None:
        if self.default_algorithm not in ALGORITHMS or self.default_algorithm == Concurrency.name:
            names = ", ".join(sorted(set(ALGORITHMS) - {Concurrency.name}))
            self._refuse(
                "default_algorithm", f"it must be one of {names}, not {self.default_algorithm!r}"
            )
        if self.on_error not in ON_ERROR:
            self._refuse(
                "on_error", f"it must be one of {', '.join(ON_ERROR)}, not {self.on_error!r}"
            )
        if self.bad_paths not in BAD_PATHS:
            self._refuse("bad_paths", f"it must be deny or pass, not {self.bad_paths!r}")
        if self.simulator not in SIMULATOR:
            self._refuse("simulator", f"it must be auto, on or off, not {self.simulator!r}")
        if self.log_level not in LOG_LEVELS:
            self._refuse(
                "log_level", f"it must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}"
            )
        with self.attributing_errors("thresholds"):
            self.adaptive_thresholds()
        with self.attributing_errors("default_window"):
            limits_of(Rate(1, self.default_window), self.default_algorithm)
        with self.attributing_errors("default_limit"):
            limits_of(Rate(self.default_limit, self.default_window), self.default_algorithm)
        for network in self.trusted_proxies:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                self._refuse("trusted_proxies", f"{error}; write networks such as 10.0.0.0/8")


def refusal(name: str, source: str, message: str) -> ConfigError | UsageError:
    """The error to raise for a value, with its source.

    A bad value on the command line is a `UsageError`.
    """
    kind = UsageError if source.startswith("--") else ConfigError
    return kind(f"{name} (from {source}): {message}")


RANGES: Final = (
    ("port", 0, 65_535),
    ("resp_port", 0, 65_535),
    ("workers", 1, 1_024),
    ("nodes", 0, 1_000_000),
    ("node_ttl", 1, 86_400),
    ("heartbeat", 0.1, 86_400),
    ("region_interval", 0.01, 60),
    ("header_timeout", 0.01, 3_600),
    ("body_timeout", 0.01, 3_600),
    ("idle_timeout", 0.01, 86_400),
    ("max_body", 256, 16_777_216),
    ("max_batch_body", 256, 16_777_216),
    ("max_connections_per_ip", 0, 1_000_000),
    ("max_lag", 0, 3_600),
    ("drain_delay", 0, 3_600),
    ("drain_timeout", 0, 3_600),
    ("traces", 0, 1),
    ("viewers", 0, 100_000),
)

SETTINGS: Final = {one.name: one for one in fields(Settings) if one.name != "sources"}
"""Every setting by its name."""
