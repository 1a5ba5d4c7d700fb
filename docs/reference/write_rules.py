"""Write the pages that are generated from the table of fields: `python docs/reference/write_rules.py`.

These are `rules.md`, next to this file, and `schema.json` in the package. `tests/unit/rules/test_reference.py` fails
when one of them is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import headgate.rules.format
from headgate.rules.format.cases import CASE, REQUEST, STEP
from headgate.rules.format.document import MAX_BYTES, MAX_DEPTH
from headgate.rules.format.field_types import ChoiceType
from headgate.rules.format.fields import ALGORITHMS, MAX_RULES, SECTIONS
from headgate.rules.format.schema import schema_text
from headgate.rules.matching.secrets import SECRET_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.rules.format.composite_types import RuleField, SectionType

PAGE: Final = Path(__file__).with_name("rules.md")
SCHEMA: Final = Path(headgate.rules.format.__file__).with_name("schema.json")

INTRODUCTION: Final = {
    "file": "A document is a mapping with these fields, a list of rules, or a single rule.",
    "rule": "Set exactly one of `rate`, `limit` and `limits`.",
    "limit": "An entry of `limits` or `overrides`. A rate such as `100/minute` also works.",
    "calendar": "`calendar: day` is short for `calendar: {period: day}`.",
    "match": "Conditions that are left out are not tested. `exempt` uses the same fields.",
    "header": "A condition for a header in `match.headers`; set one of the three.",
    "descriptor": "One of Envoy's key-value pairs; a mapping from keys to values means the same.",
    "cost": "`cost: 5` is a fixed cost; this mapping reads it from a request header.",
    "exempt": "A plain list of identifier values is short for `values`.",
    "test": "A case for `headgate rules test`: [how to test rules](../how-to/test-rules.md).",
    "step": "The steps of a case, in order.",
    "request": "All fields are optional.",
}

HEAD: Final = f"""\
<!-- Written by docs/reference/write_rules.py from the table of fields. Change that, and run it again. -->

# Rules

A rule limits some requests: `match` selects them, `identifier` says what they are counted by, and `rate` (or `limit`,
or `limits`) how much is allowed. Every rule that matches a request applies. The request passes only if all of them have
room; a denied request is charged to none. [How to write rules](../how-to/write-rules.md) starts with an example.

Rules are YAML or JSON. YAML is version 1.2: `no` is a string, `010` is ten, `1:30` is a string. Tags, anchors and
aliases are refused. JSON may have `//` comments. The extension (`.json`, `.yaml`, `.yml`) selects the format; without
one, a document that starts with `{{` or `[` is JSON. A null field counts as left out. A document may have at most
{MAX_BYTES // 2**20} MiB and {MAX_DEPTH} levels, a rule set at most {MAX_RULES:,} rules.

`headgate rules check` finds mistakes; `headgate rules schema` prints a JSON Schema for editors.
"""

TAIL: Final = """\
## Identifiers

| Identifier | What a request is counted by |
| --- | --- |
| `ip_address` | The client's IPv4 address, or its IPv6 /64. |
| `ip_address/48` | The same with an IPv6 prefix of 48, or any from 16 to 64: for a second, higher limit. |
| `user_id` | The authenticated user. |
| `api_key` | A digest of the API key. |
| `header:<name>` | The value of a header. Clients can send any header: use one that your proxy sets. |
| `descriptor:<key>` | The value of Envoy's descriptor with that key. |
| `path`, `host`, `method` | The request's path, host or method, in canonical form. |
| `global` | All requests together. |
| `{name}` | The segment of the path that `{name}` stands for in `path_pattern`. |
| a list of these | Each combination of their values. |
| a template, such as `"{user_id}:{header:x-team}"` | The resulting string. |

Keys of `overrides` and entries of `exempt` are identifier values: the value itself for one identifier, the string for
a template, and the values joined by `|` for a list (with `~` before each `|` or `~` inside a value). Quote numbers. A
value that no request can have is an error, and the message says what to write: `2001:db8::/64` for `2001:db8::1`,
`/login` for `/login/`.

Secrets are never stored or shown. API keys and the values of these headers appear in keys, lists, logs and stores as
`sha256:` and 32 hex digits:
{secrets}.
Use the same form in rules: `headgate rules check` prints the digest of an API key that it finds in `overrides`.

## Path patterns

| Pattern | Paths |
| --- | --- |
| `/users/7` | This path only. |
| `/users/*` | Everything below `/users`: one or more segments. |
| `/users/*/posts` | Exactly one segment in between. |
| `/users/{id}` | Exactly one segment, which `identifier` can use. |
| `/users/**` | `/users` and everything below it. |
| `/**/admin` | Any number of segments before `admin`, including none. |

Patterns and paths are normalized before they are compared: `/caf%C3%A9` and `/café` are the same, and so are
`/login`, `//login/` and `/x/../login`.

## Order and version

Rules apply in order of `priority`, lowest number first, then by name. The order in the file does not matter. A rule
with `stop` skips the rules after it, for requests that it is enforced for.

The version of a rule set is a digest of its rules with defaults filled in. Equal sets have equal versions, whether
they come from a file, ZooKeeper or etcd.

## Defaults

A field of `defaults` applies to every rule that does not have that field. Fields are not merged: a rule with its own
`match` gets nothing from the default `match`. A rule with a `rate` ignores the defaults' `limit` and `burst`, and the
other way round. To drop a default, write null.

## Warnings

`headgate rules check` warns, but accepts the rules, when

- no rule matches every request, so a client that evades the others has no limit;
- a rule requires authentication, and no other rule covers its path for anonymous requests;
- a rule never applies, because an earlier rule with `stop` matches all of its requests;
- two rules have the same conditions and the same identifier.
""".replace("{secrets}", ", ".join(f"`{name}`" for name in sorted(SECRET_HEADERS)))


def page() -> str:
    """The whole page."""
    tables = [_table(section) for section in (*SECTIONS, CASE, STEP, REQUEST)]
    return "\n".join([HEAD, *tables, _algorithms(), TAIL])


def _table(section: SectionType) -> str:
    lines = [f"## {section.name}", "", INTRODUCTION[section.name], ""]
    lines += ["| Field | Value | Default | Meaning | Example |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(field) for field in section.fields]
    meanings = [line for field in section.fields for line in _meanings(field)]
    return "\n".join([*lines, *(["", *meanings] if meanings else []), ""])


def _row(field: RuleField) -> str:
    names = f"`{field.name}`" + "".join(f", also `{alias}`" for alias in field.aliases)
    default = "**required**" if field.required else field.default
    cells = (names, field.kind.words(), default, field.about, f"`{_shown(field.example)}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example)


def _meanings(field: RuleField) -> Iterator[str]:
    """What the words mean that a field may have, unless that is said elsewhere."""
    if isinstance(field.kind, ChoiceType) and field.kind is not ALGORITHMS:
        said = "; ".join(f"`{value}`: {meaning}" for value, meaning in field.kind.values.items())
        yield fill(f"- `{field.name}`: {said}.", 120, subsequent_indent="  ")


def _algorithms() -> str:
    rows = [
        f"| `{name}` | {meaning[0].upper()}{meaning[1:]}. |"
        for name, meaning in ALGORITHMS.values.items()
    ]
    also = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALGORITHMS.also.items())
    head = ["## Algorithms", "", "| Algorithm | How it counts |", "| --- | --- |"]
    return "\n".join([*head, *rows, "", fill(f"By other names: {also}.", 120), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
