"""A shelf: the rules that share one path pattern, found by what else they ask.

With a handful on it, each is asked. With more, a rule is filed under the one exact condition that it shares with the
fewest others (a host, a header's value, a descriptor, a range of addresses), and a request looks only where its own
values point. So ten thousand tenants on one path, each with a rule, cost a request no more than ten.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .counting import Counting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from .addresses import Address
    from .facts import Facts
    from .model import HeaderTest, Network, Rule

    Drawer: TypeAlias = tuple[Callable[[Facts], Collection[Any]], dict[Any, list["Entry"]]]
    """What a request has of one kind, and the rules that want it, by that value."""

ANY_METHOD: Final = -1
MAX_UNFILED: Final = 8
"""So many rules are asked faster than they are looked up."""

Place: TypeAlias = tuple[str | tuple[int, int], object]
"""Where a rule may be filed: the kind of condition, of ranges also their version and mask, and the value that it wants."""


class Entry:
    """One rule, made ready to be asked."""

    __slots__ = (
        *("asks", "authenticated", "counting", "descriptors", "domains", "headers", "hosts"),
        *("methods", "ranges", "rank", "rule"),
    )

    def __init__(self, rule: Rule, rank: int, methods: int) -> None:
        match = rule.match
        self.rule = rule
        self.rank = rank
        """Its place in the order of priorities."""
        self.methods = methods
        """As bits."""
        self.counting: Counting | None = None
        """How the rule counts; made when it is first needed, which for most of many rules is never."""
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
        self.asks = (
            self.authenticated
            + bool(self.hosts)
            + len(self.headers)
            + bool(self.ranges)
            + len(self.descriptors)
        )
        """How much it asks for besides path and method."""

    def count(self) -> Counting:
        """Make ready to count."""
        self.counting = counting = Counting(self.rule)
        return counting

    def takes(self, facts: Facts) -> bool:
        """Whether everything holds that the rule asks for besides path and method."""
        if self.authenticated and facts.user_id is None:
            return False
        if self.hosts and facts.host not in self.hosts and not self._below(facts.host):
            return False
        for test in self.headers:
            if not _has(test, facts.headers.get(test.name)):
                return False
        if self.ranges and not self._in_range(facts.address):
            return False
        for pair in self.descriptors:
            if pair not in facts.descriptors and not _has_key(pair, facts):
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
        """Each exact condition, as the places where a request that fulfils it would look."""
        if self.hosts:
            yield [
                ("domain", host[1:]) if host[:2] == "*." else ("host", host) for host in self.hosts
            ]
        for test in self.headers:
            if test.present and test.exact is not None and test.prefix is None:
                yield [("header", (test.name, test.exact))]
        for pair in self.descriptors:
            if pair[1] is not None:
                yield [("descriptor", pair)]
        if self.ranges:
            yield [((version, mask), number) for version, mask, number in self.ranges]


class Shelf:
    """All rules of one path pattern."""

    __slots__ = ("drawers", "unfiled")

    def __init__(self) -> None:
        self.unfiled: list[Entry] = []
        """The rules that are asked by every request."""
        self.drawers: Sequence[Drawer] = ()
        """Where the others are filed."""

    def add(self, entry: Entry) -> None:
        """Put one more on the shelf."""
        self.unfiled.append(entry)

    def file(self, pause: Callable[[], None]) -> None:
        """All rules are there: put each where the fewest others are."""
        if len(self.unfiled) <= MAX_UNFILED:
            return
        crowds: Counter[Place] = Counter()
        for entry in self.unfiled:
            crowds.update(place for places in entry.places() for place in places)
            pause()
        filed: dict[str | tuple[int, int], dict[Any, list[Entry]]] = {}
        entries, self.unfiled = self.unfiled, []
        for entry in entries:
            best = min(
                entry.places(),
                key=lambda places: sum(crowds[place] for place in places),
                default=(),
            )
            for kind, value in dict.fromkeys(best):
                filed.setdefault(kind, {}).setdefault(value, []).append(entry)
            if not best:
                self.unfiled.append(entry)
            elif entry.asks == 1:
                entry.asks = 0  # Who finds it there has what it asks for.
            pause()
        self.drawers = [(_values_of(kind), by_value) for kind, by_value in filed.items()]

    def entries(self) -> Iterator[Entry]:
        """All rules on the shelf; one that is filed twice comes twice."""
        yield from self.unfiled
        for _, by_value in self.drawers:
            for filed in by_value.values():
                yield from filed

    def candidates(self, facts: Facts) -> list[Entry]:
        """The rules that may be about this request; the others are certainly not."""
        found: list[Entry] = []
        for values_of, by_value in self.drawers:
            for value in values_of(facts):
                if value in by_value:
                    found += by_value[value]
        if len(found) > 1:
            found = [*dict.fromkeys(found)]  # Some are filed twice.
        return self.unfiled + found


def _values_of(kind: str | tuple[int, int]) -> Callable[[Facts], Collection[Any]]:
    """How to read from a request what rules in the drawer for this kind of condition are filed by."""
    if isinstance(kind, str):
        return _READERS[kind]
    version, mask = kind

    def masked(facts: Facts) -> tuple[int, ...]:
        address = facts.address
        return () if address is None or address.version != version else (address.number & mask,)

    return masked


def _domains(host: str | None) -> list[str]:
    """Everything that a host is below, each with a dot in front."""
    return [] if host is None else [host[at:] for at, char in enumerate(host) if char == "."]


_READERS: Final[dict[str, Callable[[Facts], Collection[Any]]]] = {
    "host": lambda facts: (facts.host,),
    "domain": lambda facts: _domains(facts.host),
    "header": lambda facts: facts.headers.items(),
    "descriptor": lambda facts: facts.descriptors,
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


def _has_key(pair: tuple[str, str | None], facts: Facts) -> bool:
    """Whether a descriptor is there that may have any value."""
    key, value = pair
    return value is None and any(key == k for k, _ in facts.descriptors)
