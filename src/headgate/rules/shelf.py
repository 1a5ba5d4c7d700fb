"""A shelf: the rules that share one path pattern, found by what else they ask.

With a handful on it, each is asked. With more, a rule is filed under the one exact condition that it shares with the
fewest others (a host, a header's value, a descriptor, a range of addresses), and a request looks only where its own
values point. So ten thousand tenants on one path, each with a rule, cost a request no more than ten.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from .counting import Counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .addresses import Address
    from .facts import Facts
    from .model import HeaderTest, Network, Rule

ANY_METHOD: Final = -1
RANGES: Final = {4: "IPv4", 6: "IPv6"}
MAX_UNFILED: Final = 8
"""So many rules are asked faster than they are looked up."""

Place: TypeAlias = tuple[str, str | int, str | int]
"""Where a rule may be filed: the kind of condition, what it asks for, and the value that it wants there."""


class Entry:
    """One rule, made ready to be asked."""

    __slots__ = (
        *("_counting", "asks", "authenticated", "descriptors", "domains", "headers", "hosts"),
        *("methods", "ranges", "rank", "rule"),
    )

    def __init__(self, rule: Rule, rank: int, methods: int) -> None:
        match = rule.match
        self.rule = rule
        self.rank = rank
        """Its place in the order of priorities."""
        self.methods = methods
        """As bits."""
        self._counting: Counting | None = None
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
        self.asks = bool(
            self.authenticated or self.hosts or self.headers or self.ranges or self.descriptors
        )
        """Whether it asks for anything but path and method."""

    @property
    def counting(self) -> Counting:
        """How the rule counts; made when it is first needed, which for most of many rules is never."""
        if self._counting is None:
            self._counting = Counting(self.rule)
        return self._counting

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
                ("domain", "", host[1:]) if host[:2] == "*." else ("host", "", host)
                for host in self.hosts
            ]
        for test in self.headers:
            if test.present and test.exact is not None:
                yield [("header", test.name, test.exact)]
        for key, value in self.descriptors:
            if value is not None:
                yield [("descriptor", key, value)]
        if self.ranges:
            yield [(RANGES[version], mask, number) for version, mask, number in self.ranges]


class Shelf:
    """All rules of one path pattern."""

    __slots__ = ("_asked", "_filed", "_unfiled")

    def __init__(self) -> None:
        self._unfiled: list[Entry] = []
        self._filed: dict[Place, list[Entry]] = {}
        self._asked: dict[str, set[str | int]] = {}
        """By kind of condition: which headers, and which lengths of ranges, anything is filed under."""

    def add(self, entry: Entry) -> None:
        """Put one more on the shelf."""
        self._unfiled.append(entry)

    def file(self, pause: Callable[[], None]) -> None:
        """All rules are there: put each where the fewest others are."""
        if len(self._unfiled) <= MAX_UNFILED:
            return
        crowds: Counter[Place] = Counter()
        for entry in self._unfiled:
            crowds.update(place for places in entry.places() for place in places)
            pause()
        entries, self._unfiled = self._unfiled, []
        for entry in entries:
            best = min(
                entry.places(),
                key=lambda places: sum(crowds[place] for place in places),
                default=(),
            )
            for place in dict.fromkeys(best):
                self._filed.setdefault(place, []).append(entry)
                self._asked.setdefault(place[0], set()).add(place[1])
            if not best:
                self._unfiled.append(entry)
            pause()

    def entries(self) -> Iterator[Entry]:
        """All rules on the shelf; one that is filed twice comes twice."""
        yield from self._unfiled
        for filed in self._filed.values():
            yield from filed

    def candidates(self, facts: Facts) -> Iterable[Entry]:
        """The rules that may be about this request; the others are certainly not."""
        if not self._filed:
            return self._unfiled
        found = self._unfiled.copy()
        for place in self._places(facts):
            found += self._filed.get(place, ())
        return found if len(found) < 2 else dict.fromkeys(found)  # Some are filed twice.

    def _places(self, facts: Facts) -> Iterator[Place]:
        """Where this request has to look."""
        asked, host = self._asked, facts.host
        if host is not None:
            yield "host", "", host
            if "domain" in asked:
                for dot in [at for at, char in enumerate(host) if char == "."]:
                    yield "domain", "", host[dot:]
        if "header" in asked:
            for name, value in facts.headers.items():
                yield "header", name, value
        for key, value in facts.descriptors:
            yield "descriptor", key, value
        if facts.address is not None:
            kind = RANGES[facts.address.version]
            for mask in asked.get(kind, ()):
                yield kind, mask, facts.address.number & int(mask)


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
