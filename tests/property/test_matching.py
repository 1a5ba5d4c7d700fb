"""The rulebook finds exactly the rules that asking each of them finds, and a path has one spelling."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import example, given, strategies as st

from headgate.algorithms import FixedWindow, Limit, TokenBucket
from headgate.rules.matching import condition_index
from headgate.rules.matching.condition_index import MAX_UNINDEXED
from headgate.rules.matching.paths import MAX_PATH_BYTES, BadPathError, canonical_path
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.model import (
    Cost,
    Exempt,
    HeaderTest,
    Identifier,
    IdentifierPart,
    Match,
    Rule,
    RuleSet,
)
from headgate.rules.request import Request

if TYPE_CHECKING:
    from headgate.charge import Charge

LIMIT: Limit = FixedWindow(10, 60_000_000)
OTHER: Limit = TokenBucket(5, 1_000_000, 5)

# Few words, so that rules and requests meet.
words = st.sampled_from(["a", "b", "c"])
few = st.lists(words, max_size=5)
pieces = st.lists(st.sampled_from(["a", "b", "c", "*", "**", "{x}"]), max_size=5).filter(
    lambda words: words.count("{x}") <= 1 and words.count("**") <= 4
)
patterns = st.one_of(
    st.none(), st.just("*"), pieces.map(lambda words: "/" + "/".join(words)), few.map("/".join)
).map(lambda text: text if text is None or text == "*" or text.startswith("/") else "/" + text)
methods = st.sampled_from(["GET", "HEAD", "POST", "brew"])
hosts = st.sampled_from(["a.test", "b.a.test", "*.a.test", "*.test", "test"])
header_tests = st.builds(
    lambda name, kind, value: HeaderTest(
        name=name,
        present=kind != "absent",
        **({kind: value} if kind in {"exact", "prefix"} else {}),
    ),
    words,
    st.sampled_from(["exact", "prefix", "present", "absent"]),
    words,
)
networks = st.sampled_from(
    [ip_network(text) for text in ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "2001:db8::/32")]
)
descriptors = st.tuples(words, st.one_of(st.none(), words))
matches = st.builds(
    Match,
    path_pattern=patterns,
    methods=st.frozensets(methods.map(str.upper), max_size=2),
    hosts=st.lists(hosts, max_size=2).map(tuple),
    headers=st.lists(header_tests, max_size=2).map(tuple),
    ip_ranges=st.lists(networks, max_size=2).map(tuple),
    requires_authentication=st.booleans(),
    descriptors=st.lists(descriptors, max_size=2).map(tuple),
)
easy_matches = st.one_of(
    matches,
    st.builds(Match, path_pattern=patterns),
    st.builds(Match, path_pattern=st.just("/a/*"), hosts=hosts.map(lambda host: (host,))),
    st.builds(Match, headers=header_tests.map(lambda test: (test,))),
    st.builds(Match, descriptors=descriptors.map(lambda pair: (pair,))),
    st.builds(Match, ip_ranges=networks.map(lambda net: (net,))),
    st.builds(
        Match,
        hosts=hosts.map(lambda host: (host,)),
        requires_authentication=st.booleans(),
        descriptors=st.lists(descriptors, max_size=2).map(tuple),
    ),
)
parts = st.builds(
    IdentifierPart,
    kind=st.sampled_from(["ip_address", "user_id", "path", "host", "method", "global"]),
) | st.builds(IdentifierPart, kind=st.sampled_from(["header", "descriptor", "text"]), name=words)


@st.composite
def rule_sets(draw: st.DrawFn) -> RuleSet:
    rules = []
    for at in range(draw(st.integers(0, 25))):
        rule = Rule(
            rule_id=f"r{at}",
            identifier=Identifier(
                parts=tuple(draw(st.lists(parts, min_size=1, max_size=3))),
                joined=draw(st.booleans()),
            ),
            limits=draw(st.sampled_from([(LIMIT,), (LIMIT, OTHER), (OTHER,) * 40])),
            match=draw(easy_matches),
            priority=draw(st.integers(0, 3)),
            stop=draw(st.integers(0, 9)) == 0,
            cost=draw(st.sampled_from([Cost(), Cost(default=2, header="a", maximum=5)])),
            on_missing=draw(st.sampled_from(["ip_address", "share", "skip", "deny"])),
            shadow=draw(st.integers(0, 5)) == 0,
            enforce_percent=draw(st.sampled_from([0, 50, 100, 100])),
            overrides=draw(st.sampled_from([{}, {"a": (OTHER,)}])),
            exempt=draw(st.builds(Exempt, values=st.frozensets(words, max_size=1))),
            enabled=draw(st.integers(0, 9)) > 0,
        )
        rules.append(rule)
    return RuleSet(tuple(sorted(rules, key=lambda rule: rule.priority)))


ambiguous = st.lists(
    st.sampled_from(["a", "b", "/", "%2F", "%2f", "\\", "%5C", "..", ";a", "%zz"]), max_size=8
).map(lambda words: "/" + "".join(words))
requests = st.builds(
    Request,
    method=methods,
    path=st.one_of(few.map(lambda words: "/" + "/".join(words)), st.just("*"), ambiguous),
    ip=st.sampled_from([None, "10.1.2.3", "10.9.9.9", "::ffff:10.1.2.3", "2001:db8::1", "nobody"]),
    user_id=st.one_of(st.none(), words),
    host=st.sampled_from([None, "a.test", "B.a.test:80", "c.b.a.test.", "test", "other"]),
    headers=st.dictionaries(words.map(str.upper), st.sampled_from(["a", "b", "ab", "7"])),
    descriptors=st.lists(st.tuples(words, words), max_size=3).map(tuple),
    cost=st.sampled_from([None, None, 3]),
)


def written(charge: Charge) -> tuple[Any, ...]:
    return charge.rule, charge.key, charge.cost, charge.kind, charge.limits


@given(rule_sets(), st.lists(requests, min_size=1, max_size=5), st.sampled_from([0, MAX_UNINDEXED]))
def test_the_rulebook_finds_what_asking_every_rule_finds(
    rules: RuleSet, asked: list[Request], max_unindexed: int
) -> None:
    with patch.object(condition_index, "MAX_UNINDEXED", max_unindexed):
        rulebook = Rulebook(rules)
    for request in asked:
        quick = [written(charge) for charge in rulebook.charges(request)]
        slow = [written(charge) for charge in rulebook.explain(request).charges]
        assert quick == slow


SLASHES = ["/", "//", "\\", "%2f", "%5c", "http://h", "://", "//"]
DOTS = [".", "..", "%2e", "%2E", "%252e", "%2e%2e"]
ENDS = [";", ";x=1", "%3b", "?", "#", "%3f"]
ESCAPES = [
    "%",
    "%4",
    "%zz",
    "%00",
    "%61",
    "%20",
    "%25",
    "%c3%a9",
    "%c0%ae",
    "%ff",
    "%ED%A0%80",
    "%F0%9F%98%80",
]
LETTERS = ["a", "A", "é", " ", "*", "~", "{x}", "\x7f", "\ud800", "\u3000"]
tricks = st.lists(st.sampled_from([*SLASHES, *DOTS, *ENDS, *ESCAPES, *LETTERS]), max_size=12).map(
    "".join
)


@given(st.one_of(tricks, st.text()))
@example("/" + "%" * MAX_PATH_BYTES)
@example("é" * 2_000)
def test_the_spelling_of_a_path_is_its_own_spelling(raw: str) -> None:
    try:
        path = canonical_path(raw)
    except BadPathError:
        return
    assert canonical_path(path) == path
    assert path.isascii()
    assert path == "*" or (path.startswith("/") and "//" not in path)
    assert not {".", ".."} & set(path.split("/"))
    assert not set("?#;\\ ") & set(path)


@given(st.lists(st.sampled_from(["a", "..", ".", "%2E", "b;x", ""]), max_size=8))
def test_an_escape_of_an_ordinary_letter_changes_nothing(segments: list[str]) -> None:
    plain = "/" + "/".join(segments)
    hidden = plain.replace("a", "%61").replace("b", "%62")
    assert canonical_path(hidden) == canonical_path(plain)
