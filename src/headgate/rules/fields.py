"""The table of every field that rules may have.

This is the only place that lists them: `parse` checks documents against it, `schema` turns it into JSON Schema, and the
reference page in the documentation is written from it.
"""

from __future__ import annotations

from typing import Final

from ..algorithms.base import MAX_EXACT
from .kinds import Anything, Choice, Flag, Number, Text, Whole
from .patterns import MAX_PATTERN
from .sections import Each, Field, Section, Shapes, Table, one_or_more

FORMAT_VERSION: Final = 1
MAX_RULES: Final = 10_000
MAX_LIMITS: Final = 16
MAX_OVERRIDES: Final = 10_000
MAX_PRIORITY: Final = 1_000_000
MAX_WINDOW_SECONDS: Final = 366 * 86_400

ALGORITHMS: Final = Choice(
    {
        "fixed_window": "starts from zero each window; the one for calendar periods",
        "sliding_window": "close to exact, small; the default",
        "sliding_log": "exact, remembers every request",
        "token_bucket": "a burst, then an even pace; the default with a burst",
        "exponential_backoff": "tightens while it is hammered",
        "adaptive": "three count, one decides: `sliding_window`, as long as nothing chooses another",
    },
    also={
        "fixed_window_counter": "fixed_window",
        "sliding_window_counter": "sliding_window",
        "sliding_window_log": "sliding_log",
    },
    refused={
        "concurrency": (
            "a rule sees a request begin but not end, so it cannot count how many run at once",
            "hold a slot in the code: limiter.concurrency(key, limit)",
        )
    },
)
PERIODS: Final = Choice(
    {"day": "from midnight", "week": "from Monday", "month": "from the first; a month is a month"}
)
_VALUE: Final = Text(high=8_192)
_HEADER: Final = Text(
    high=256,
    pattern=r"[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    must="be the name of a header",
    remedy="write letters, digits and hyphens",
    called="name of a header",
)
_RATE: Final = Text(high=1_000, called="[rate](rates.md)")

CALENDAR: Final = Section(
    "calendar",
    [
        Field(name="period", kind=PERIODS, about="How long.", example="month", required=True),
        Field(
            name="time_zone",
            kind=Text(high=64),
            about="Whose midnight counts.",
            default="UTC",
            example="Europe/Berlin",
        ),
        Field(
            name="anchor",
            kind=Whole(1, 31),
            about="The day it begins on: 1 (Monday) to 7 of a week, 1 to 31 of a month.",
            default="1",
            example=15,
        ),
    ],
)
AMOUNT: Final = (
    Field(
        name="rate",
        kind=_RATE,
        about="How much, in one text; several with `;` between them all hold.",
        example="100/minute burst 20",
    ),
    Field(
        name="limit",
        kind=Whole(0, MAX_EXACT),
        about="How many units a window has; 0 denies every request.",
        example=100,
    ),
    Field(
        name="window_size_seconds",
        kind=Number(0.001, MAX_WINDOW_SECONDS),
        about="How long the window of `limit` is.",
        example=60,
    ),
    Field(
        name="calendar",
        kind=Shapes(text=PERIODS, mapping=CALENDAR),
        about="Count `limit` by the calendar instead of by `window_size_seconds`.",
        example={"period": "month", "time_zone": "Europe/Berlin"},
    ),
    Field(
        name="burst",
        kind=Whole(1, MAX_EXACT),
        about="How many units an idle key can give at once; for `token_bucket` and `adaptive`.",
        default="the limit",
        example=20,
    ),
    Field(
        name="algorithm",
        kind=ALGORITHMS,
        about="How it is counted.",
        default="`token_bucket` with a burst, `fixed_window` by the calendar, else `sliding_window`",
        example="token_bucket",
    ),
)
AMOUNT_NAMES: Final = frozenset(field.name for field in AMOUNT)
LIMIT: Final = Section("limit", AMOUNT)

HEADER_TEST: Final = Section(
    "header",
    [
        Field(name="exact", kind=Text(low=0, high=1_024), about="The whole value.", example="blue"),
        Field(name="prefix", kind=Text(high=1_024), about="How it begins.", example="v2."),
        Field(
            name="present",
            kind=Flag(),
            about="Whether the header must be there, or must not.",
            default="`true`",
            example=False,
        ),
    ],
)
DESCRIPTOR: Final = Section(
    "descriptor",
    [
        Field(name="key", kind=Text(), about="Its key.", example="tenant", required=True),
        Field(
            name="value",
            kind=Text(low=0, high=1_024),
            about="Its value.",
            default="any",
            example="acme",
        ),
    ],
)
MATCH: Final = Section(
    "match",
    [
        Field(
            name="path_pattern",
            kind=Text(high=MAX_PATTERN, called="path pattern"),
            about="Which paths: `*` is one segment, at the end one or more; `**` is any number; `{name}` is one segment "
            "that `identifier` can use.",
            default="any path",
            example="/api/users/{user}/*",
        ),
        Field(
            name="methods",
            kind=one_or_more(
                Text(
                    high=32,
                    pattern=r"[!#$%&'+.^_`|~0-9A-Za-z-]+",
                    must="be a method such as GET",
                    remedy="to match every method, leave out `methods`",
                    called="method",
                ),
                64,
            ),
            about="Which methods; `GET` stands for `HEAD` too.",
            default="any method",
            example=["GET", "POST"],
        ),
        Field(
            name="host",
            kind=one_or_more(Text(high=253, called="host name"), 256),
            about="Which hosts; `*.example.com` is every name below `example.com`.",
            default="any host",
            example="*.example.com",
            aliases=("hosts",),
        ),
        Field(
            name="headers",
            kind=Table(
                _HEADER, Shapes(text=Text(low=0, high=1_024), flag=Flag(), mapping=HEADER_TEST), 64
            ),
            about="Which headers: a text is the whole value, `true` means there, `false` not there.",
            default="not asked",
            example={"x-team": "blue", "x-version": {"prefix": "2."}, "x-internal": False},
        ),
        Field(
            name="required_headers",
            kind=Shapes(
                list=Each(_HEADER, 0, 64), mapping=Table(_HEADER, Text(low=0, high=1_024), 64)
            ),
            about="Headers that must be there, or a mapping with the value that each must have.",
            default="not asked",
            example=["X-Client-Version"],
        ),
        Field(
            name="ip_subnet",
            kind=one_or_more(Text(high=64, called="range of addresses"), 1_000),
            about="From which addresses: one range in CIDR notation, or several.",
            default="any address",
            example=["203.0.113.0/24", "2001:db8::/32"],
            aliases=("ip_subnets", "ip_ranges"),
        ),
        Field(
            name="requires_authentication",
            kind=Flag(),
            about="Whether only requests with a user id are meant.",
            default="`false`",
            example=True,
        ),
        Field(
            name="descriptors",
            kind=Shapes(
                list=Each(DESCRIPTOR, 0, 64),
                mapping=Table(Text(), Shapes(text=Text(low=0, high=1_024), flag=Flag()), 64),
            ),
            about="Which descriptors Envoy must send; in a mapping `true` takes any value.",
            default="not asked",
            example={"tenant": "acme", "plan": True},
        ),
    ],
)
COST: Final = Section(
    "cost",
    [
        Field(
            name="header",
            kind=_HEADER,
            about="The header that says it.",
            example="X-Cost",
            required=True,
        ),
        Field(
            name="default",
            kind=Whole(0, MAX_EXACT),
            about="What a request without it costs.",
            default="1",
            example=1,
        ),
        Field(
            name="min",
            kind=Whole(0, MAX_EXACT),
            about="What a request costs at least, whatever the header says; 0 lets it say that it is free.",
            default="1",
            example=1,
        ),
        Field(
            name="max",
            kind=Whole(1, MAX_EXACT),
            about="What a request costs at most, whatever the header says.",
            default="1000000",
            example=100,
        ),
    ],
)
EXEMPT: Final = Section(
    "exempt",
    [
        Field(
            name="values",
            kind=Each(_VALUE, 0, MAX_OVERRIDES),
            about="Identifier values.",
            example=["monitoring"],
        ),
        Field(
            name="match",
            kind=Shapes(mapping=MATCH, list=Each(MATCH, 0, 64)),
            about="Requests, described as in `match`; one description or several.",
            example={"ip_subnet": "10.0.0.0/8"},
        ),
    ],
)
_LIMITS: Final = Each(Shapes(text=_RATE, mapping=LIMIT), 1, MAX_LIMITS)

RULE: Final = Section(
    "rule",
    [
        Field(
            name="rule_id",
            kind=Text(
                high=128,
                pattern=r"[A-Za-z0-9][A-Za-z0-9._:@-]*",
                must="consist of letters, digits and . _ : @ -, with a letter or a digit first",
                called="name",
            ),
            about="Its name, once in a set: in answers, metrics and sources. What was used is kept under it.",
            example="login-per-address",
            required=True,
        ),
        Field(
            name="description",
            kind=Text(low=0, high=2_000),
            about="For people.",
            example="Guessing passwords must be slow.",
        ),
        Field(
            name="identifier",
            kind=one_or_more(Text(high=256, called="identifier"), 8, low=1),
            about="Whom a request is counted for: see below.",
            example="user_id",
            aliases=("identifier_type",),
            required=True,
        ),
        *AMOUNT,
        Field(
            name="limits",
            kind=_LIMITS,
            about="Several limits that all hold, each a rate or a mapping.",
            example=["5/second", {"limit": 1000, "calendar": "day"}],
        ),
        Field(
            name="cost",
            kind=Shapes(number=Whole(1, MAX_EXACT), mapping=COST),
            about="What one request takes.",
            default="1",
            example=5,
        ),
        Field(
            name="match",
            kind=MATCH,
            about="Which requests the rule is about; all conditions must hold.",
            default="every request",
            example={"path_pattern": "/login", "methods": ["POST"]},
        ),
        Field(
            name="priority",
            kind=Whole(-MAX_PRIORITY, MAX_PRIORITY),
            about="Rules are asked, and reported, from the lowest to the highest; among equals by name.",
            default="100",
            example=10,
        ),
        Field(
            name="stop",
            kind=Flag(),
            about="Whether rules after this one are left out for requests that it is enforced for; a shadow leaves out none.",
            default="`false`",
            example=True,
        ),
        Field(
            name="on_missing",
            kind=Choice(
                {
                    "ip_address": "count it for its address",
                    "share": "count all such requests together",
                    "skip": "do not apply the rule",
                    "deny": "deny it",
                }
            ),
            about="What to do with a request that has no such identifier.",
            default="`ip_address`",
            example="deny",
        ),
        Field(
            name="on_error",
            kind=Choice(
                {"open": "let requests pass", "closed": "deny them"},
                refused={
                    "fallback": (
                        "this version cannot share a limit among nodes while the engine is away",
                        "choose open or closed",
                    )
                },
            ),
            about="What to answer while the engine cannot.",
            default="the library raises, the service lets requests pass",
            example="closed",
        ),
        Field(
            name="consistency",
            kind=Choice(
                {"exact": "every request is decided by the engine"},
                refused={
                    "leased": (
                        "this version cannot hand out parts of a limit in advance",
                        "choose exact",
                    )
                },
            ),
            about="How closely nodes agree.",
            default="`exact`",
            example="exact",
        ),
        Field(
            name="shadow",
            kind=Flag(),
            about="Whether to count and report only, and never deny.",
            default="`false`",
            example=True,
        ),
        Field(
            name="enforce_percent",
            kind=Whole(0, 100),
            about="For how many of 100 identifiers it is enforced; for the others it is a shadow.",
            default="100",
            example=10,
        ),
        Field(
            name="overrides",
            kind=Table(_VALUE, Shapes(text=_RATE, mapping=LIMIT, list=_LIMITS), MAX_OVERRIDES),
            about="Other limits for some identifier values; what a mapping leaves out is as in the rule.",
            example={"user-42": "1000/minute"},
        ),
        Field(
            name="exempt",
            kind=Shapes(list=Each(_VALUE, 0, MAX_OVERRIDES), mapping=EXEMPT),
            about="Whom the rule leaves alone: identifier values, or more.",
            example=["monitoring"],
        ),
        Field(
            name="enabled",
            kind=Flag(),
            about="Whether the rule is there at all.",
            default="`true`",
            example=False,
        ),
        Field(
            name="labels",
            kind=Table(
                Text(high=64, pattern=r"[A-Za-z_][A-Za-z0-9_.-]*", must="begin with a letter"),
                Text(low=0, high=256),
                32,
            ),
            about="Words of your own, shown with the rule.",
            example={"team": "payments"},
        ),
    ],
    complete=False,  # Defaults may say the rest.
)
DEFAULTS: Final = Section(
    "defaults", [one for one in RULE.fields if one.name != "rule_id"], complete=False
)
FILE: Final = Section(
    "file",
    [
        Field(
            name="version",
            kind=Whole(FORMAT_VERSION, FORMAT_VERSION),
            about="The version of this format.",
            default="1",
            example=1,
        ),
        Field(
            name="defaults",
            kind=DEFAULTS,
            about="Fields of a rule that hold for every rule which does not say otherwise.",
            example={"algorithm": "sliding_window", "on_error": "closed"},
        ),
        Field(
            name="rules",
            kind=Each(RULE, 0, MAX_RULES),
            about="The rules.",
            example=[{"rule_id": "everyone", "identifier": "ip_address", "rate": "100/minute"}],
            required=True,
        ),
        Field(
            name="tests",
            kind=Each(Anything(), 0, MAX_RULES),
            about="Cases for `headgate rules test`.",
            example=[{"request": {"path": "/"}, "matches": ["everyone"]}],
        ),
        Field(
            name="$schema",
            kind=Text(high=1_024),
            about="Where editors find the schema.",
            example="./rules.schema.json",
        ),
    ],
)
SECTIONS: Final = (FILE, RULE, LIMIT, CALENDAR, MATCH, HEADER_TEST, DESCRIPTOR, COST, EXEMPT)
"""In the order in which a reader needs them."""
