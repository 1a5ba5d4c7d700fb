"""The table of every field that rules may have; `match_fields` has those of `match`.

It is the only list of them: `parse` checks documents against it, `schema` turns it into JSON Schema, and the reference
page in the documentation is generated from it.
"""

from __future__ import annotations

from typing import Final

from ...algorithms.base import MAX_EXACT
from .composite_types import ListType, MappingType, OneOfType, RuleField, SectionType, one_or_more
from .field_types import (
    AnyType,
    BooleanType,
    ChoiceType,
    IntegerType,
    NumberType,
    RefusedWord,
    TextType,
)
from .match_fields import DESCRIPTOR, HEADER_NAME, HEADER_TEST, MATCH

FORMAT_VERSION: Final = 1
MAX_RULES: Final = 10_000
MAX_LIMITS: Final = 16
MAX_OVERRIDES: Final = 10_000
MAX_PRIORITY: Final = 1_000_000
MAX_WINDOW_SECONDS: Final = 366 * 86_400

ALGORITHMS: Final = ChoiceType(
    {
        "fixed_window": "restarts from zero each window; also for calendar periods",
        "sliding_window": "close to exact, with little memory; the default",
        "sliding_log": "exact; stores every request",
        "token_bucket": "a burst, then a steady rate; the default with a burst",
        "exponential_backoff": "halves the limit of clients that keep hammering",
        "adaptive": "three algorithms count, and the traffic selects which one decides",
    },
    also={
        "fixed_window_counter": "fixed_window",
        "sliding_window_counter": "sliding_window",
        "sliding_window_log": "sliding_log",
    },
    refused={
        "concurrency": RefusedWord(
            "a rule sees a request begin but not end, so it cannot count how many run at once",
            "hold a slot in the code: limiter.concurrency(key, limit)",
        )
    },
)
PERIODS: Final = ChoiceType(
    {"day": "from midnight", "week": "from Monday", "month": "from the first"}
)
_VALUE: Final = TextType(high=8_192)
_RATE: Final = TextType(
    high=1_000,
    number_remedy="add a time unit, such as 60/minute, or use `limit` with `window_size_seconds`",
    called="[rate](rates.md)",
)

CALENDAR: Final = SectionType(
    "calendar",
    [
        RuleField(
            name="period",
            kind=PERIODS,
            about="The length of the period.",
            example="month",
            required=True,
        ),
        RuleField(
            name="time_zone",
            kind=TextType(high=64),
            about="The time zone in which days begin.",
            default="UTC",
            example="Europe/Berlin",
        ),
        RuleField(
            name="anchor",
            kind=IntegerType(1, 31),
            about="The day on which the period begins: 1 (Monday) to 7 for a week, 1 to 31 for a month.",
            default="1",
            example=15,
        ),
    ],
)
AMOUNT: Final = (
    RuleField(
        name="rate",
        kind=_RATE,
        about="The rate as text; several rates, separated by `;`, all apply.",
        example="100/minute burst 20",
    ),
    RuleField(
        name="limit",
        kind=IntegerType(0, MAX_EXACT),
        about="Units per window; 0 denies every request.",
        example=100,
    ),
    RuleField(
        name="window_size_seconds",
        kind=NumberType(0.001, MAX_WINDOW_SECONDS),
        about="The window of `limit`, in seconds.",
        example=60,
    ),
    RuleField(
        name="calendar",
        kind=OneOfType(text=PERIODS, mapping=CALENDAR),
        about="Count `limit` per calendar period instead of `window_size_seconds`.",
        example={"period": "month", "time_zone": "Europe/Berlin"},
    ),
    RuleField(
        name="burst",
        kind=IntegerType(1, MAX_EXACT),
        about="Units that an idle key allows at once; for `token_bucket` and `adaptive`.",
        default="the limit",
        example=20,
    ),
    RuleField(
        name="algorithm",
        kind=ALGORITHMS,
        about="The algorithm that counts.",
        default="`token_bucket` with a burst, `fixed_window` by the calendar, else `sliding_window`",
        example="token_bucket",
    ),
)
AMOUNT_NAMES: Final = frozenset(field.name for field in AMOUNT)
LIMIT: Final = SectionType("limit", AMOUNT)

COST: Final = SectionType(
    "cost",
    [
        RuleField(
            name="header",
            kind=HEADER_NAME,
            about="The header that holds the cost.",
            example="X-Cost",
            required=True,
        ),
        RuleField(
            name="default",
            kind=IntegerType(0, MAX_EXACT),
            about="The cost of a request without the header.",
            default="1",
            example=1,
        ),
        RuleField(
            name="min",
            kind=IntegerType(0, MAX_EXACT),
            about="The lowest cost of a request, whatever the header says; 0 allows free requests.",
            default="1",
            example=1,
        ),
        RuleField(
            name="max",
            kind=IntegerType(1, MAX_EXACT),
            about="The highest cost of a request, whatever the header says.",
            default="1000000",
            example=100,
        ),
    ],
)
EXEMPT: Final = SectionType(
    "exempt",
    [
        RuleField(
            name="values",
            kind=ListType(_VALUE, 0, MAX_OVERRIDES),
            about="Identifier values.",
            example=["monitoring"],
        ),
        RuleField(
            name="match",
            kind=OneOfType(mapping=MATCH, list=ListType(MATCH, 0, 64)),
            about="Conditions as in `match`, one set or several; requests that fulfil any of them are exempt.",
            example={"ip_subnet": "10.0.0.0/8"},
        ),
    ],
)
_LIMITS: Final = ListType(OneOfType(text=_RATE, mapping=LIMIT), 1, MAX_LIMITS)

RULE: Final = SectionType(
    "rule",
    [
        RuleField(
            name="rule_id",
            kind=TextType(
                high=128,
                pattern=r"[A-Za-z0-9][A-Za-z0-9._:@-]*",
                must="consist of letters, digits and . _ : @ -, with a letter or a digit first",
                called="name",
            ),
            about="Its name, unique in the set; shown in answers, metrics and sources. Counts are stored under it.",
            example="login-per-address",
            required=True,
        ),
        RuleField(
            name="description",
            kind=TextType(low=0, high=2_000),
            about="For people.",
            example="Guessing passwords must be slow.",
        ),
        RuleField(
            name="identifier",
            kind=one_or_more(TextType(high=256, called="identifier"), 8, low=1),
            about="What requests are counted by: see below.",
            example="user_id",
            aliases=("identifier_type",),
            required=True,
        ),
        *AMOUNT,
        RuleField(
            name="limits",
            kind=_LIMITS,
            about="Several limits that all apply, each a rate or a mapping.",
            example=["5/second", {"limit": 1000, "calendar": "day"}],
        ),
        RuleField(
            name="cost",
            kind=OneOfType(number=IntegerType(1, MAX_EXACT), mapping=COST),
            about="Units that one request takes.",
            default="1",
            example=5,
        ),
        RuleField(
            name="match",
            kind=MATCH,
            about="Which requests the rule applies to; all conditions must hold.",
            default="every request",
            example={"path_pattern": "/login", "methods": ["POST"]},
        ),
        RuleField(
            name="priority",
            kind=IntegerType(-MAX_PRIORITY, MAX_PRIORITY),
            about="Rules apply, and are reported, in ascending order; rules with the same priority by name.",
            default="100",
            example=10,
        ),
        RuleField(
            name="stop",
            kind=BooleanType(),
            about="Whether to skip later rules for requests that this rule is enforced for; a shadow never skips.",
            default="`false`",
            example=True,
        ),
        RuleField(
            name="on_missing",
            kind=ChoiceType(
                {
                    "ip_address": "count it under its address",
                    "share": "count all such requests together",
                    "skip": "do not apply the rule",
                    "deny": "deny it",
                }
            ),
            about="What to do with a request that lacks the identifier.",
            default="`ip_address`",
            example="deny",
        ),
        RuleField(
            name="on_error",
            kind=ChoiceType(
                {
                    "fallback": "admit this node's share of the limit",
                    "open": "let requests pass",
                    "closed": "deny them",
                    "raise": "return an error to the caller",
                },
            ),
            about="What to do while the engine does not answer.",
            default="`raise` in the library, `fallback` in the service",
            example="closed",
        ),
        RuleField(
            name="consistency",
            kind=ChoiceType(
                {
                    "exact": "the engine decides every request",
                    "leased": "nodes take units in chunks and answer from them",
                    "split": "each region has its share of the limit",
                    "merge": "each region has the whole limit, and the others report what they admit",
                    "escrow": "regions hold rights that add up to the limit",
                },
            ),
            about="How nodes or regions share the limit.",
            default="`exact`",
            example="leased",
        ),
        RuleField(
            name="when_cut_off",
            kind=ChoiceType(
                {
                    "limit": "the whole limit, minus the last known usage of the others",
                    "share": "its share of the limit",
                },
            ),
            about="What a region admits with `consistency: merge` while it is cut off from another.",
            default="`limit`",
            example="share",
        ),
        RuleField(
            name="shadow",
            kind=BooleanType(),
            about="Whether the rule only counts and reports, and never denies.",
            default="`false`",
            example=True,
        ),
        RuleField(
            name="enforce_percent",
            kind=IntegerType(0, 100),
            about="The percentage of identifiers for which the rule is enforced; for the others it is a shadow.",
            default="100",
            example=10,
        ),
        RuleField(
            name="overrides",
            kind=MappingType(
                _VALUE, OneOfType(text=_RATE, mapping=LIMIT, list=_LIMITS), MAX_OVERRIDES
            ),
            about="Other limits for some identifier values; fields that a mapping leaves out come from the rule.",
            example={"user-42": "1000/minute"},
        ),
        RuleField(
            name="exempt",
            kind=OneOfType(list=ListType(_VALUE, 0, MAX_OVERRIDES), mapping=EXEMPT),
            about="Identifier values or requests that the rule does not apply to.",
            example=["monitoring"],
        ),
        RuleField(
            name="enabled",
            kind=BooleanType(),
            about="Whether the rule is in use.",
            default="`true`",
            example=False,
        ),
        RuleField(
            name="labels",
            kind=MappingType(
                TextType(high=64, pattern=r"[A-Za-z_][A-Za-z0-9_.-]*", must="begin with a letter"),
                TextType(low=0, high=256),
                32,
            ),
            about="Your own labels, shown with the rule.",
            example={"team": "payments"},
        ),
    ],
    complete=False,  # Defaults may fill in the rest.
)
DEFAULTS: Final = SectionType(
    "defaults", [one for one in RULE.fields if one.name != "rule_id"], complete=False
)
FILE: Final = SectionType(
    "file",
    [
        RuleField(
            name="version",
            kind=IntegerType(FORMAT_VERSION, FORMAT_VERSION),
            about="The version of this format.",
            default="1",
            example=1,
        ),
        RuleField(
            name="defaults",
            kind=DEFAULTS,
            about="Fields that apply to every rule that does not set them.",
            example={"algorithm": "sliding_window", "on_error": "closed"},
        ),
        RuleField(
            name="rules",
            kind=ListType(RULE, 0, MAX_RULES),
            about="The rules.",
            example=[{"rule_id": "everyone", "identifier": "ip_address", "rate": "100/minute"}],
            required=True,
        ),
        RuleField(
            name="tests",
            kind=ListType(AnyType(), 0, MAX_RULES),
            about="Cases for `headgate rules test`.",
            example=[{"request": {"path": "/"}, "matches": ["everyone"]}],
        ),
        RuleField(
            name="source",
            kind=AnyType(),
            about="Where the rules came from, as written by `headgate rules list --json` and `pull`; ignored.",
            example={"url": "etcd://localhost:2379/config/ratelimit/rules", "revision": 12},
        ),
        RuleField(
            name="$schema",
            kind=TextType(high=1_024),
            about="Where editors find the schema.",
            example="./rules.schema.json",
        ),
    ],
)
SECTIONS: Final = (FILE, RULE, LIMIT, CALENDAR, MATCH, HEADER_TEST, DESCRIPTOR, COST, EXEMPT)
"""In the order of the reference page."""
