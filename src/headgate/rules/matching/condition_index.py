"""An index of the rules that share one path pattern, by their other conditions.

A handful of rules are tested one by one. With more, each rule is indexed by the one exact condition that it shares with
the fewest others (a host, a header's value, a descriptor, a range of addresses), and a request looks up its own values.
So ten thousand tenants on one path, each with a rule of its own, cost a request no more than ten do.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .charging import ChargeBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ..model import HeaderTest, Network, Rule
    from .addresses import Address
    from .normalized_request import NormalizedRequest

    Lookup: TypeAlias = tuple[
        Callable[[NormalizedRequest], Collection[Any]], dict[Any, list["IndexedRule"]]
    ]
    """Reads the values to look up from a request; and the rules that require each value."""

ANY_METHOD: Final = -1
MAX_UNINDEXED: Final = 8
"""Up to this many rules are tested one by one, which is faster than looking them up."""

Place: TypeAlias = tuple[str | tuple[int, int], object]
"""A key of the index: the kind of condition (for address ranges, IP version and mask) and the value that it
requires."""


class IndexedRule:
    """One rule, compiled for matching."""

    __slots__ = (
        *("authenticated", "builder", "conditions", "descriptors", "domains", "headers", "hosts"),
        *("methods", "ranges", "rank", "rule"),
    )

    def __init__(self, rule: Rule, rank: int, methods: int) -> None:
        match = rule.match
        self.rule = rule
        self.rank = rank
        """Its place in the order of priorities."""
        self.methods = methods
        """As bits."""
        self.builder: ChargeBuilder | None = None
        """Made on first use: with many rules, most are never used."""
        self.authenticated = match.requires_authentication
        self.hosts = match.hosts
        self.headers = match.headers
        self.descriptors = match.descriptors
        self.domains: tuple[str, ...] = ()
        self.ranges: tuple[tuple[int, int, int], ...] = ()
        if match.hosts:
            self.domains = tuple([host[1:] for host in match.hosts if host[:2] == "*."])
        if match.ip_ranges:
            self.ranges = tuple([_numbers_of(network) for network in match.ip_ranges])
        self.conditions = (
            self.authenticated
            + bool(self.hosts)
            + len(self.headers)
            + bool(self.ranges)
            + len(self.descriptors)
        )
        """How many conditions it has besides path and method."""

    def make_builder(self) -> ChargeBuilder:
        """Make the charge builder, and keep it."""
        self.builder = builder = ChargeBuilder(self.rule)
        return builder

    def matches(self, request: NormalizedRequest) -> bool:
        """Whether all conditions besides path and method hold."""
        if self.authenticated and request.user_id is None:
            return False
        if self.hosts and request.host not in self.hosts and not self._below(request.host):
            return False
        for test in self.headers:
            if not _has(test, request.headers.get(test.name)):
                return False
        if self.ranges and not self._in_range(request.address):
            return False
        for pair in self.descriptors:
            if pair not in request.descriptors and not _has_key(pair, request):
                return False
        return True

    def _below(self, host: str | None) -> bool:
        """Whether a host is below one that the rule names."""
        return host is not None and host.endswith(self.domains)

    def _in_range(self, address: Address | None) -> bool:
        if address is None:
            return False
        for version, mask, number in self.ranges:
            if version == address.version and address.number & mask == number:
                return True
        return False

    def places(self) -> Iterator[list[Place]]:
        """For each exact condition, the index keys that a matching request looks up."""
        if self.hosts:
            yield [
                ("domain", host[1:]) if host[:2] == "*." else ("host", host) for host in self.hosts
            ]
        for test in self.headers:
            if test.present and test.exact is not None and test.prefix is None:
                yield [("header", (test.name, test.exact))]
        for name, value in self.descriptors:
            if value is not None:
                yield [("descriptor", (name, value))]
        if self.ranges:
            yield [((version, mask), number) for version, mask, number in self.ranges]


class ConditionIndex:
    """All rules of one path pattern."""

    __slots__ = ("lookups", "unindexed")

    def __init__(self) -> None:
        self.unindexed: list[IndexedRule] = []
        """The rules that every request is tested against."""
        self.lookups: Sequence[Lookup] = ()
        """The others, by the condition they are indexed by."""

    def add(self, entry: IndexedRule) -> None:
        """Add a rule."""
        self.unindexed.append(entry)

    def build(self, pause: Callable[[], None]) -> None:
        """Index the rules that were added, each by its most selective condition."""
        if len(self.unindexed) <= MAX_UNINDEXED:
            return
        sizes: Counter[Place] = Counter()
        for entry in self.unindexed:
            sizes.update(place for places in entry.places() for place in places)
            pause()
        indexed: dict[str | tuple[int, int], dict[Any, list[IndexedRule]]] = {}
        entries, self.unindexed = self.unindexed, []
        for entry in entries:
            best = min(
                entry.places(),
                key=lambda places: sum(sizes[place] for place in places),
                default=(),
            )
            for kind, value in dict.fromkeys(best):
                indexed.setdefault(kind, {}).setdefault(value, []).append(entry)
            if not best:
                self.unindexed.append(entry)
            elif entry.conditions == 1:
                entry.conditions = 0  # A request that finds it fulfils its only condition.
            pause()
        self.lookups = [(_values_of(kind), by_value) for kind, by_value in indexed.items()]

    def entries(self) -> Iterator[IndexedRule]:
        """All rules; one that is indexed twice comes twice."""
        yield from self.unindexed
        for _, by_value in self.lookups:
            for indexed in by_value.values():
                yield from indexed

    def candidates(self, request: NormalizedRequest) -> list[IndexedRule]:
        """The rules that may match this request; no other can."""
        found: list[IndexedRule] = []
        for values_of, by_value in self.lookups:
            for value in values_of(request):
                if value in by_value:
                    found += by_value[value]
        if len(found) > 1:
            found = [*dict.fromkeys(found)]  # Some are indexed twice.
        return self.unindexed + found


def _values_of(kind: str | tuple[int, int]) -> Callable[[NormalizedRequest], Collection[Any]]:
    """How to read the values to look up for this kind of condition from a request."""
    if isinstance(kind, str):
        return _READERS[kind]
    version, mask = kind

    def masked(request: NormalizedRequest) -> tuple[int, ...]:
        address = request.address
        return () if address is None or address.version != version else (address.number & mask,)

    return masked


def _domains(host: str | None) -> list[str]:
    """Everything that a host is below, each with a dot in front."""
    return [] if host is None else [host[at:] for at, char in enumerate(host) if char == "."]


_READERS: Final[dict[str, Callable[[NormalizedRequest], Collection[Any]]]] = {
    "host": lambda request: (request.host,),
    "domain": lambda request: _domains(request.host),
    "header": lambda request: request.headers.items(),
    "descriptor": lambda request: request.descriptors,
}


def _numbers_of(network: Network) -> tuple[int, int, int]:
    """A range of addresses, as its version, its mask and the bits that it wants behind that."""
    return network.version, int(network.netmask), int(network.network_address)


def _has(test: HeaderTest, value: str | None) -> bool:
    if value is None or not test.present:
        return (value is None) is not test.present
    if test.exact is not None and value != test.exact:
        return False
    return test.prefix is None or value.startswith(test.prefix)


def _has_key(pair: tuple[str, str | None], request: NormalizedRequest) -> bool:
    """Whether a descriptor is there that may have any value."""
    key, value = pair
    return value is None and any(key == k for k, _ in request.descriptors)
