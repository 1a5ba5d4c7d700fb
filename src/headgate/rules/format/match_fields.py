"""The fields of `match`: which requests a rule applies to."""

from __future__ import annotations

from typing import Final

from ..matching.path_patterns import MAX_PATTERN
from .composite_types import ListType, MappingType, OneOfType, RuleField, SectionType, one_or_more
from .field_types import BooleanType, TextType

HEADER_NAME: Final = TextType(
    high=256,
    pattern=r"[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    must="be the name of a header",
    remedy="write letters, digits and hyphens",
    called="name of a header",
)

HEADER_TEST: Final = SectionType(
    "header",
    [
        RuleField(
            name="exact", kind=TextType(low=0, high=1_024), about="The exact value.", example="blue"
        ),
        RuleField(
            name="prefix",
            kind=TextType(high=1_024),
            about="The beginning of the value.",
            example="v2.",
        ),
        RuleField(
            name="present",
            kind=BooleanType(),
            about="Whether the header must be present or absent.",
            default="`true`",
            example=False,
        ),
    ],
)
DESCRIPTOR: Final = SectionType(
    "descriptor",
    [
        RuleField(name="key", kind=TextType(), about="Its key.", example="tenant", required=True),
        RuleField(
            name="value",
            kind=TextType(low=0, high=1_024),
            about="Its value.",
            default="any",
            example="acme",
        ),
    ],
)
MATCH: Final = SectionType(
    "match",
    [
        RuleField(
            name="path_pattern",
            kind=TextType(high=MAX_PATTERN, called="path pattern"),
            about="Which paths: `*` is one segment, at the end one or more; `**` is any number; `{name}` is one "
            "segment that `identifier` can use.",
            default="any path",
            example="/api/users/{user}/*",
        ),
        RuleField(
            name="methods",
            kind=one_or_more(
                TextType(
                    high=32,
                    pattern=r"[!#$%&'+.^_`|~0-9A-Za-z-]+",
                    must="be a method such as GET",
                    remedy="to match every method, leave out `methods`",
                    called="method",
                ),
                64,
            ),
            about="Methods; `GET` includes `HEAD`.",
            default="any method",
            example=["GET", "POST"],
        ),
        RuleField(
            name="host",
            kind=one_or_more(TextType(high=253, called="host name"), 256),
            about="Hosts; `*.example.com` matches every subdomain of `example.com`.",
            default="any host",
            example="*.example.com",
            aliases=("hosts",),
        ),
        RuleField(
            name="headers",
            kind=MappingType(
                HEADER_NAME,
                OneOfType(
                    text=TextType(low=0, high=1_024), flag=BooleanType(), mapping=HEADER_TEST
                ),
                64,
            ),
            about="Headers: a string is the exact value, `true` means present, `false` absent.",
            default="not tested",
            example={"x-team": "blue", "x-version": {"prefix": "2."}, "x-internal": False},
        ),
        RuleField(
            name="required_headers",
            kind=OneOfType(
                list=ListType(HEADER_NAME, 0, 64),
                mapping=MappingType(HEADER_NAME, TextType(low=0, high=1_024), 64),
            ),
            about="Headers that must be present, or a mapping with the value that each must have.",
            default="not tested",
            example=["X-Client-Version"],
        ),
        RuleField(
            name="ip_subnet",
            kind=one_or_more(TextType(high=64, called="range of addresses"), 1_000),
            about="Client addresses: one range in CIDR notation, or several.",
            default="any address",
            example=["203.0.113.0/24", "2001:db8::/32"],
            aliases=("ip_subnets", "ip_ranges"),
        ),
        RuleField(
            name="requires_authentication",
            kind=BooleanType(),
            about="Whether the rule applies only to requests with a user id.",
            default="`false`",
            example=True,
        ),
        RuleField(
            name="descriptors",
            kind=OneOfType(
                list=ListType(DESCRIPTOR, 0, 64),
                mapping=MappingType(
                    TextType(), OneOfType(text=TextType(low=0, high=1_024), flag=BooleanType()), 64
                ),
            ),
            about="Descriptors that Envoy must send; in a mapping, `true` matches any value.",
            default="not tested",
            example={"tenant": "acme", "plan": True},
        ),
    ],
)
