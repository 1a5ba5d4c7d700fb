"""Which rules apply, in which order, and what they charge."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from headgate.algorithms import FixedWindow
from headgate.charge_kind import ChargeKind
from headgate.errors import UsageError
from headgate.limiter import Limiter
from headgate.rules.matching.charging import DENY, bucket_of
from headgate.rules.matching.paths import BadPathError
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.model import Cost, Exempt, HeaderTest, Match, Rule
from headgate.rules.request import Request
from headgate.testing import ManualClock
from tests.unit.rules.making import MINUTE_US, identifier, per_minute, rule, rule_set, rulebook

IP = "203.0.113.9"


def applied(request: Request, *rules: Rule) -> list[str | None]:
    """The rules that apply, as the rulebook and the trace both have it."""
    book = rulebook(*rules)
    found = [charge.rule for charge in book.charges(request)]
    assert found == [charge.rule for charge in book.explain(request).charges]
    return found


def test_all_rules_that_match_apply_the_lowest_priority_first() -> None:
    rules = [
        rule("late", priority=200),
        rule("early", priority=1, path="/a/*"),
        rule("other", path="/b"),
        rule("middle", path="/**"),
    ]
    assert applied(Request(path="/a/b"), *rules) == ["early", "middle", "late"]


def test_stop_ends_the_list() -> None:
    rules = [rule("first", priority=1, stop=True, path="/a"), rule("second", priority=2)]
    assert applied(Request(path="/a"), *rules) == ["first"]
    assert applied(Request(path="/b"), *rules) == ["second"]


@pytest.mark.parametrize(
    "settings",
    [
        {"shadow": True},
        {"enforce_percent": 0},
        {"by": "user_id", "on_missing": "skip"},
        {"exempt": Exempt(values=frozenset({IP}))},
        {"enabled": False},
    ],
    ids=["shadow", "not enforced for this one", "skipped", "exempt", "disabled"],
)
def test_a_rule_that_is_not_enforced_does_not_switch_off_the_others(
    settings: dict[str, Any],
) -> None:
    rules = [rule("first", priority=1, stop=True, **settings), rule("second", priority=2)]
    assert applied(Request(ip=IP), *rules)[-1] == "second"


METHODS = {
    "the same": ({"GET"}, "GET", True),
    "another": ({"GET"}, "POST", False),
    "one of several": ({"PUT", "POST"}, "POST", True),
    "lower case": ({"POST"}, "post", True),
    "HEAD is a GET": ({"GET"}, "HEAD", True),
    "GET is no HEAD": ({"HEAD"}, "GET", False),
    "a method nobody knows": ({"GET"}, "BREW", False),
    "a method nobody knows, for all": (set(), "BREW", True),
}


@pytest.mark.parametrize("methods, method, matches", METHODS.values(), ids=METHODS)
def test_method(methods: set[str], method: str, *, matches: bool) -> None:
    only = rule(match=Match(methods=frozenset(methods)))
    assert bool(applied(Request(method), only)) is matches


HOSTS = {
    "the same": ("example.com", "example.com", True),
    "with a port and capitals": ("example.com", "EXAMPLE.com:8080", True),
    "with the dot of a full name": ("example.com", "example.com.", True),
    "another": ("example.com", "example.org", False),
    "none": ("example.com", None, False),
    "below": ("*.example.com", "a.b.example.com", True),
    "the name itself is not below it": ("*.example.com", "example.com", False),
    "a name that ends alike": ("*.example.com", "badexample.com", False),
    "an endless one": ("*.example.com", "a." * 2_000 + "example.com", False),
}


@pytest.mark.parametrize("host, asked, matches", HOSTS.values(), ids=HOSTS)
def test_host(host: str, asked: str | None, *, matches: bool) -> None:
    only = rule(match=Match(hosts=(host,)))
    assert bool(applied(Request(host=asked), only)) is matches


HEADERS: dict[str, tuple[dict[str, Any], dict[str, str], bool]] = {
    "exact": ({"exact": "pro"}, {"X-Plan": "pro"}, True),
    "exact, but another": ({"exact": "pro"}, {"X-Plan": "free"}, False),
    "exact, spaces around": ({"exact": "pro"}, {"x-plan": " pro "}, True),
    "prefix": ({"prefix": "pro"}, {"x-plan": "pro-2"}, True),
    "prefix, but another": ({"prefix": "pro"}, {"x-plan": "free"}, False),
    "present": ({}, {"x-plan": ""}, True),
    "not present": ({}, {}, False),
    "absent": ({"present": False}, {}, True),
    "not absent": ({"present": False}, {"X-PLAN": "x"}, False),
    "came twice": ({"exact": "a, b"}, {"X-Plan": "a", "x-plan": "b"}, True),
}


@pytest.mark.parametrize("test, headers, matches", HEADERS.values(), ids=HEADERS)
def test_header(test: dict[str, Any], headers: dict[str, str], *, matches: bool) -> None:
    only = rule(match=Match(headers=(HeaderTest(name="x-plan", **test),)))
    assert bool(applied(Request(headers=headers), only)) is matches


RANGES = {
    "in it": ("203.0.113.0/24", IP, True),
    "in disguise": ("203.0.113.0/24", "::ffff:203.0.113.9", True),
    "outside": ("203.0.113.0/25", "203.0.113.200", False),
    "of the other family": ("::/0", IP, False),
    "IPv6": ("2001:db8::/32", "2001:db8::1", True),
    "no address": ("0.0.0.0/0", None, False),
    "garbage": ("0.0.0.0/0", "localhost", False),
}


@pytest.mark.parametrize("network, ip, matches", RANGES.values(), ids=RANGES)
def test_range(network: str, ip: str | None, *, matches: bool) -> None:
    only = rule(match=Match(ip_ranges=(ip_network("192.0.2.0/24"), ip_network(network))))
    assert bool(applied(Request(ip=ip), only)) is matches


def test_a_header_cannot_change_the_method() -> None:
    posts = rule(match=Match(methods=frozenset({"POST"})))
    headers = {"X-HTTP-Method-Override": "GET", "X-HTTP-Method": "GET", "X-Method-Override": "GET"}
    assert applied(Request("POST", headers=headers), posts) == ["rule"]


def test_a_client_cannot_use_up_the_limit_of_another_by_sending_its_name() -> None:
    book = rulebook(rule(by=identifier("header:x-user", "ip_address")))
    keys = {
        book.charges(Request(ip=ip, headers={"x-user": "ann"}))[0].key
        for ip in (IP, "198.51.100.7")
    }
    assert keys == {f"ann|{IP}", "ann|198.51.100.7"}


def test_authentication_is_a_user_id() -> None:
    only = rule(match=Match(requires_authentication=True))
    assert applied(Request(user_id="42"), only) == ["rule"]
    assert applied(Request(api_key="42"), only) == []
    assert applied(Request(user_id=""), only) == []


def test_descriptors_must_all_be_there() -> None:
    only = rule(match=Match(descriptors=(("plan", "pro"), ("user", None))))
    assert applied(Request(descriptors=(("user", "7"), ("plan", "pro"))), only) == ["rule"]
    assert applied(Request(descriptors=(("plan", "pro"),)), only) == []
    assert applied(Request(descriptors=(("plan", "free"), ("user", "7"))), only) == []


def test_a_refused_path_is_matched_by_rules_without_a_pattern_only() -> None:
    rules = [rule("everyone"), rule("everywhere", path="/**"), rule("any", path="*")]
    assert applied(Request(path="/api/%00login"), *rules) == ["everyone"]
    with pytest.raises(BadPathError, match="%00"):
        rulebook(*rules).charges(Request(path="/api/%00login"), bad_paths="deny")


@pytest.mark.parametrize(
    "path, matching",
    [
        ("/x%2f..%2flogin", ["any", "login"]),
        ("\\login", ["any", "login"]),
        ("/login%2f", ["any", "login"]),
        ("/x;%2flogin", ["any", "below x"]),
        ("/x%2fy", ["any", "below x"]),
        ("/npm/@scope%2fname", ["any", "package"]),
        ("/npm/@scope/name", ["any"]),
        ("/x%2f..\\login", ["any", "below x", "login"]),
    ],
)
def test_a_rule_that_matches_any_reading_of_a_path_applies(path: str, matching: list[str]) -> None:
    rules = [
        rule("any"),
        rule("login", path="/login"),
        rule("below x", path="/x/*"),
        rule("package", path="/npm/{name}"),
    ]
    assert sorted(map(str, applied(Request(path=path, ip=IP), *rules))) == matching
    assert sorted(one.rule_id for one in rulebook(*rules).match(Request(path=path))) == matching


def test_a_rule_that_counts_by_path_counts_every_reading() -> None:
    """A disguise gives nobody a fresh count, whichever reading the server takes."""
    book = rulebook(rule("paths", by="path", path="/**"))
    trick = Request(path="/x1;r%2f..%2flogin/y")
    assert [charge.key for charge in book.charges(trick)] == ["/x1/y", "/login/y"]
    assert [charge.key for charge in book.explain(trick).charges] == ["/x1/y", "/login/y"]
    names = rulebook(rule("names", by="path:name", path="/npm/{name}"))
    scoped = names.charges(Request(path="/npm/@scope%2fname"))
    assert [charge.key for charge in scoped] == ["@scope%2Fname"]


def test_a_rule_that_stops_under_one_reading_stops_nothing_under_another() -> None:
    rules = [
        rule("static", path="/static/**", stop=True, priority=1),
        rule("login", path="/login", priority=2),
        rule("any", priority=3),
    ]
    trick = Request(path="/static%2f..%2flogin", ip=IP)
    assert applied(trick, *rules) == ["login", "any"]
    trick = Request(path="/static/%2f..%2f..%2flogin", ip=IP)
    assert applied(trick, *rules) == ["static", "login", "any"]


def test_an_explanation_shows_every_reading() -> None:
    trace = rulebook(rule("login", path="/login")).explain(Request(path="/x%2f..%2flogin", ip=IP))
    assert (trace.path, trace.others, trace.refusal) == ("/x%2F..%2Flogin", ("/login",), "")
    assert trace.notes == (
        "the path may also be read as /login, and rules that match that apply too",
    )
    assert trace.as_json()["also_read_as"] == ["/login"]


def test_rules_for_many_tenants_on_one_path_are_not_asked_one_by_one() -> None:
    """Each differs by a host, a header, a descriptor or a range: each is found, and few are asked."""
    of = {
        "host": [Match(path_pattern="/x", hosts=(f"h{i}.test",)) for i in range(100)],
        "domain": [Match(path_pattern="/x", hosts=(f"*.d{i}.test",)) for i in range(100)],
        "header": [
            Match(path_pattern="/x", headers=(HeaderTest(name="tenant", exact=str(i)),))
            for i in range(100)
        ],
        "name": [
            Match(path_pattern="/x", headers=(HeaderTest(name=f"n{i}", exact="1"),))
            for i in range(100)
        ],
        "pair": [Match(path_pattern="/x", descriptors=(("tenant", str(i)),)) for i in range(100)],
        "range": [
            Match(path_pattern="/x", ip_ranges=(ip_network(f"10.0.{i}.0/24"),)) for i in range(100)
        ],
    }
    rules = [
        rule(f"{kind}{i}", match=one) for kind, all_ in of.items() for i, one in enumerate(all_)
    ]
    book = rulebook(*rules)
    request = Request(
        path="/x",
        host="h7.test",
        ip="10.0.7.7",
        headers={"Tenant": "7", "n7": "1"},
        descriptors=(("tenant", "7"),),
    )
    assert [found.rule_id for found in book.match(request)] == [
        "host7",
        "header7",
        "name7",
        "pair7",
        "range7",
    ]
    below = Request(path="/x", host="a.b.d9.test")
    assert [found.rule_id for found in book.match(below)] == ["domain9"]
    (index,) = book._by_path.values()
    assert len(list(index.candidates(_facts(request)))) == 5


def _facts(request: Request) -> Any:
    from headgate.rules.matching.normalized_request import NormalizedRequest  # noqa: PLC0415

    return NormalizedRequest(request)


def test_a_rule_that_is_filed_twice_is_found_once() -> None:
    both = Match(
        hosts=("a.test", "*.test"), ip_ranges=(ip_network("10.0.0.0/8"), ip_network("10.0.0.0/16"))
    )
    rules = [rule(f"r{i}", match=Match(hosts=(f"h{i}.test",))) for i in range(20)]
    assert applied(Request(host="a.test", ip="10.0.0.1"), *rules, rule("both", match=both)) == [
        "both"
    ]


COSTS = {
    "one": (Cost(), {}, None, 1),
    "what the rule says": (Cost(default=3), {}, None, 3),
    "what the header says": (Cost(header="x-cost"), {"X-Cost": "7"}, None, 7),
    "not nothing": (Cost(header="x-cost"), {"X-Cost": "0"}, None, 1),
    "nothing, where that is allowed": (
        *(Cost(header="x-cost", minimum=0), {"X-Cost": "0"}, None, 0),
    ),
    "too little": (Cost(header="x-cost", minimum=5), {"X-Cost": "4"}, None, 5),
    "no header": (Cost(default=2, header="x-cost"), {}, None, 2),
    "no number": (Cost(default=2, header="x-cost"), {"X-Cost": "-5"}, None, 2),
    "a fraction": (Cost(default=2, header="x-cost"), {"X-Cost": "1.5"}, None, 2),
    "other digits": (Cost(default=2, header="x-cost"), {"X-Cost": "٣"}, None, 2),
    "too much": (Cost(header="x-cost", maximum=50), {"X-Cost": "51"}, None, 50),
    "far too much": (Cost(header="x-cost", maximum=50), {"X-Cost": "9" * 5_000}, None, 50),
    "what the caller says": (Cost(header="x-cost"), {"X-Cost": "7"}, 4, 4),
}


@pytest.mark.parametrize("cost, headers, said, expected", COSTS.values(), ids=COSTS)
def test_cost(cost: Cost, headers: dict[str, str], said: int | None, expected: int) -> None:
    (charge,) = rulebook(rule(cost=cost)).charges(Request(headers=headers, cost=said))
    assert charge.cost == expected


def test_an_override_has_limits_of_its_own() -> None:
    book = rulebook(rule(by="user_id", overrides={"42": per_minute(99)}))
    limits = [book.charges(Request(user_id=user))[0].limits for user in ("42", "43")]
    assert limits == [per_minute(99), per_minute(10)]


def test_an_override_is_not_for_an_address_that_stands_in_for_a_user() -> None:
    book = rulebook(rule(by="user_id", overrides={IP: per_minute(99), f"~ip={IP}": per_minute(99)}))
    assert book.charges(Request(ip=IP))[0].limits == per_minute(10)


def test_an_override_names_the_value_as_it_is() -> None:
    book = rulebook(rule(by="user_id", overrides={"~x": per_minute(99)}))
    (charge,) = book.charges(Request(user_id="~x"))
    assert (charge.key, charge.limits) == ("~~x", per_minute(99))


def test_exempt_by_value_and_by_match() -> None:
    exempt = Exempt(values=frozenset({"boss"}), matches=(Match(path_pattern="/health/**"),))
    only = rule(by="user_id", exempt=exempt, on_missing="deny")
    assert applied(Request(user_id="boss"), only) == []
    assert applied(Request(path="/health/x"), only) == []
    assert applied(Request(user_id="42"), only) == ["rule"]


def test_on_missing_skip_and_deny() -> None:
    assert applied(Request(ip=IP), rule(by="user_id", on_missing="skip")) == []
    (charge,) = rulebook(rule(by="user_id", on_missing="deny")).charges(Request(cost=0))
    assert (charge.limits, charge.cost, charge.kind) == (
        (FixedWindow(0, MINUTE_US),),
        1,
        ChargeKind.TAKE,
    )


def test_shadow_rules_charge_as_shadows() -> None:
    (charge,) = rulebook(rule(shadow=True)).charges(Request(ip=IP))
    assert charge.kind is ChargeKind.SHADOW


def test_raising_the_percentage_only_adds_identifiers() -> None:
    users = [f"user-{i}" for i in range(400)]
    before: set[str] = set()
    for percent in (0, 1, 10, 50, 99, 100):
        book = rulebook(rule(by="user_id", enforce_percent=percent))
        enforced = {
            user for user in users if book.charges(Request(user_id=user))[0].kind is ChargeKind.TAKE
        }
        assert before <= enforced
        assert abs(len(enforced) - 4 * percent) <= 40
        before = enforced


def test_where_a_key_stands_never_changes() -> None:
    """Nodes of different versions must agree about it."""
    assert [bucket_of(rule("login"), key) for key in ("a", "b", IP)] == [31, 95, 19]


def test_a_request_that_more_limits_are_enforced_for_than_fit_into_one_go_is_denied() -> None:
    """Rules that cannot be asked must not let it pass."""
    rules = [
        rule(f"r{i:03}", limits=(*per_minute(5), FixedWindow(9, 1_000_000))) for i in range(64)
    ]
    every = [*rules, rule("every", priority=200), rule("watch", priority=300, shadow=True)]
    request = Request(ip=IP)
    assert applied(request, *rules) == [f"r{i:03}" for i in range(64)]
    (charge,) = rulebook(*every).charges(request)
    assert (charge.rule, charge.key, charge.limits) == ("every", IP, DENY)
    trace = rulebook(*every).explain(request)
    assert trace.charges[0].limits == DENY
    assert {step.outcome for step in trace.steps[:64]} == {"left out"}
    assert trace.steps[64].outcome == "enforced"
    assert trace.steps[64].why == (
        "one request may have at most 128 limits, and this rule has no place left: the request is denied"
    )
    assert trace.steps[65].outcome == "left out"
    decision = Limiter(rules=rulebook(*every), clock=ManualClock()).decide_request(request)
    assert (decision.allowed, decision.never, decision.rule) == (False, True, "every")


def test_shadows_take_no_places_from_rules_that_are_enforced() -> None:
    both = (*per_minute(5), FixedWindow(9, 1_000_000))
    shadows = [rule(f"s{i:03}", limits=both, priority=1, shadow=True) for i in range(64)]
    rules = [*shadows, rule("every"), rule("last", priority=200, shadow=True)]
    assert applied(Request(ip=IP), *rules) == [*[f"s{i:03}" for i in range(63)], "every", "last"]
    steps = rulebook(*rules).explain(Request(ip=IP)).steps
    assert [step.outcome for step in steps[62:]] == ["shadow", "left out", "enforced", "shadow"]


@pytest.mark.parametrize("asked", ["test", "*.test"])
def test_a_rule_that_is_found_by_one_condition_is_asked_for_the_others(asked: str) -> None:
    """Nine are too many to ask each, so they are filed by their hosts."""
    hosts = [rule(f"h{i}", match=Match(hosts=(f"{i}.test",))) for i in range(9)]
    found = rule("found", match=Match(hosts=(asked,), requires_authentication=True))
    book = rulebook(*hosts, found)
    host = asked.replace("*", "any")
    assert [one.rule_id for one in book.match(Request(host=host, user_id="7"))] == ["found"]
    assert not book.match(Request(host=host))
    assert [one.rule_id for one in book.match(Request(host="4.test"))] == ["h4"]


def test_a_descriptor_that_comes_twice_finds_its_rule_once() -> None:
    many = [rule(f"r{i}", match=Match(descriptors=(("t", f"{i}"),))) for i in range(9)]
    request = Request(ip=IP, descriptors=(("t", "4"), ("t", "4"), ("t", "5")))
    assert applied(request, *many) == ["r4", "r5"]


def test_compiling_pauses_between_small_pieces() -> None:
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    Rulebook(rule_set(*[rule(f"r{i}", path=f"/{i}") for i in range(50)]), pause=pause)
    assert pauses >= 50


def test_a_rulebook_can_be_let_go_piece_by_piece() -> None:
    """Each piece is in the list, so that none drags others with it when it goes."""
    many = [
        rule(f"r{i}", match=Match(path_pattern="/a/{x}/**/b", hosts=(f"h{i}",))) for i in range(9)
    ]
    book = rulebook(*many, rule("all"))
    root = book._by_path._root
    pieces = {id(piece) for piece in book.pieces()}
    node_a = root.fixed["a"]
    assert node_a.one is not None
    assert node_a.one.gap is not None
    leaf = node_a.one.gap.fixed["b"]
    (index,) = leaf.here
    for piece in (*book.rules, root, node_a, node_a.one, node_a.one.gap, leaf, index):
        assert id(piece) in pieces
    assert {id(entry) for entry in index.entries()} <= pieces
    assert len(list(index.entries())) == 9
    order = [id(piece) for piece in book.pieces()]
    chain = [order.index(id(node)) for node in (leaf, node_a.one.gap, node_a.one, node_a, root)]
    assert chain == sorted(chain)  # The last one goes first, while those below it are still held.


NO_REQUEST: dict[str, tuple[Any, str]] = {
    "a tuple": (("GET", "/"), "headgate.Request"),
    "a path that is none": (Request(path=None), "path must be text"),  # type: ignore[arg-type]
    "a method that is none": (Request(method=7), "method must be text"),  # type: ignore[arg-type]
    "bytes": (Request(path=b"/"), "path must be text"),  # type: ignore[arg-type]
    "a method of bytes": (Request(method=b"GET"), "method must be text"),  # type: ignore[arg-type]
    "no descriptors": (Request(descriptors=None), "descriptors must be a tuple"),  # type: ignore[arg-type]
    "an address object": (Request(ip=ip_network("::/0")), "ip must be text"),  # type: ignore[arg-type]
    "headers in a list": (Request(headers=[("a", "b")]), "headers must be a mapping"),  # type: ignore[arg-type]
    "a header of bytes": (Request(headers={"a": b"b"}), "headers must be strings"),  # type: ignore[dict-item]
    "a user that is a number": (Request(user_id=42), "user_id must be text"),  # type: ignore[arg-type]
    "a descriptor alone": (Request(descriptors=("a",)), "pairs of strings"),  # type: ignore[arg-type]
    "a cost below nothing": (Request(cost=-1), "cost must be"),
    "a cost that is none": (Request(cost=True), "cost must be"),
}


@pytest.mark.parametrize("request_, reason", NO_REQUEST.values(), ids=NO_REQUEST)
def test_an_invalid_request_is_refused(request_: Any, reason: str) -> None:
    by = identifier("header:a", "user_id", "descriptor:a")
    book = rulebook(rule(by=by, path="/**"), rule("other", by="user_id"))
    with pytest.raises(UsageError, match=reason):
        book.charges(request_)


@pytest.mark.parametrize(
    "path",
    ["/a%2f..%2flogin", "/a%00", "/a" + 256 * "%2fa", "/" + "a" * 8_192, "/%zz", "/a/b", "/", "*"],
)
def test_a_request_has_the_reason_why_its_path_is_refused(path: str) -> None:
    request = Request(path=path, ip=IP)
    trace = rulebook(rule("here", path="/**"), rule("any")).explain(request)
    assert request.path_refused == (trace.refusal or None)
    assert (request.path_refused is None) == (trace.path is not None)
