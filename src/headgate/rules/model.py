"""Rules as values: which requests are limited, how much, and special cases.

A rule has three parts. `match` says which requests it is about; `identifier` says whom each of them is counted for;
`limits` says how much that one may do. Everything here is immutable and was checked when it was built (`parse.py`), so
a `RuleSet` is always valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..algorithms import Limit
    from ..rate import Consistency

Network: TypeAlias = IPv4Network | IPv6Network

OnMissing: TypeAlias = Literal["ip_address", "share", "skip", "deny"]
"""What a request without the identifier is counted for: its address, one key for all of them, nobody; or it is
denied."""

WhenCutOff: TypeAlias = Literal["limit", "share"]
OnError: TypeAlias = Literal["fallback", "open", "closed", "raise"]
"""What is answered when the engine does not: by the node's share of the limit, yes, no, or with an error."""
ON_ERROR: Final[tuple[OnError, ...]] = ("fallback", "open", "closed", "raise")

NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTest:
    """What a header must look like; with none of `exact` and `prefix` it must be there, or must not."""

    name: str
    """In lower case."""
    exact: str | None = None
    prefix: str | None = None
    present: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests a rule applies to. An empty field sets no condition."""

    path_pattern: str | None = None
    methods: frozenset[str] = frozenset()
    """In upper case. `GET` stands for `HEAD` too: it is a `GET` without a body."""
    hosts: tuple[str, ...] = ()
    """In lower case, without a port; `*.example.com` is every name below `example.com`."""
    headers: tuple[HeaderTest, ...] = ()
    ip_ranges: tuple[Network, ...] = ()
    requires_authentication: bool = False
    descriptors: tuple[tuple[str, str | None], ...] = ()
    """Envoy's: each pair must be among the request's; `None` takes any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifierPart:
    """A piece of an identifier: a fixed text, or something that is read from the request."""

    kind: Literal[
        "text",
        "ip_address",
        "user_id",
        "api_key",
        "header",
        "path",
        "host",
        "method",
        "descriptor",
        "global",
    ]
    name: str = ""
    """The text itself, the header's name in lower case, the descriptor's key, a `{name}` of the path pattern, or how
    long the prefix is that addresses of IPv6 share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifier:
    """What a request is counted by: the values of `parts`, joined.

    `joined` says that they came from a template such as `"{user_id}:{header:x-team}"` and make one text as they
    stand; otherwise they are a list, and are written so that two different lists never look the same.
    """

    parts: tuple[IdentifierPart, ...]
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one request takes: `default` units, or what a header says, from `minimum` to `maximum`."""

    default: int = 1
    header: str | None = None
    minimum: int = 1
    maximum: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exempt:
    """What a rule does not apply to: these identifier values, and requests that fit one of `matches`."""

    values: frozenset[str] = frozenset()
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Rule:
    """One rule, checked and complete."""

    rule_id: str
    identifier: Identifier
    limits: tuple[Limit, ...]
    match: Match = Match()
    description: str = ""
    priority: int = 100
    """Rules are asked, and reported, from the lowest to the highest."""
    stop: bool = False
    """Whether rules after this one are left out for requests that it is enforced for; a shadow leaves out none."""
    cost: Cost = Cost()
    on_missing: OnMissing = "ip_address"
    on_error: OnError | None = None
    """`None` uses the caller's default: the library raises, the service admits its share."""
    consistency: Consistency = "exact"
    """How its limits are kept together by nodes and regions; they say the same."""
    when_cut_off: WhenCutOff = "limit"
    """What a region goes by that cannot hear another, of limits that regions merge."""
    shadow: bool = False
    enforce_percent: int = 100
    """For how many of 100 identifiers the rule is enforced; for the others it is a shadow."""
    overrides: Mapping[str, tuple[Limit, ...]] = field(default_factory=lambda: NOTHING)
    exempt: Exempt = Exempt()
    enabled: bool = True
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    document: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)
    """The rule as it was written, with the file's defaults filled in: plain JSON values, what a source stores."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules that hold at one time, the lowest priority first, and those of the same priority by name.

    The order does not depend on what was written first, because a store with one node a rule does not know.
    """

    rules: tuple[Rule, ...]
    version: str = ""
    """Names this very set; two sets of the same version have the same rules."""

    @classmethod
    def parse(cls, text: str | bytes, name: str = "rules") -> RuleSet:
        """Read rules from JSON or YAML; raises `RulesError` with everything that is wrong with them.

        >>> RuleSet.parse('{"rule_id": "all", "identifier": "ip_address", "rate": "100/minute"}')["all"].priority
        100
        """
        from .format.parse import parse_rules  # noqa: PLC0415 - reading needs more than having does

        if not isinstance(text, str | bytes):
            raise UsageError(f"rules must be a string or bytes, not {text!r:.80}")
        return parse_rules(text, name).rules

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, rule_id: str) -> Rule:
        found = next((rule for rule in self.rules if rule.rule_id == rule_id), None)
        if found is None:
            raise KeyError(rule_id)
        return found
