"""Write what is made from the table of fields: `python docs/reference/write_rules.py`.

That is `rules.md`, the page beside this file, and `schema.json` in the package. `tests/unit/rules/test_reference.py` fails when one
of them is not as this program would write it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import headgate.rules
from headgate.rules.cases import CASE, REQUEST, STEP
from headgate.rules.document import MAX_BYTES, MAX_DEPTH
from headgate.rules.fields import ALGORITHMS, MAX_RULES, SECTIONS
from headgate.rules.kinds import Choice
from headgate.rules.schema import schema_text
from headgate.rules.secrets import SECRET_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.rules.sections import Field, Section

PAGE: Final = Path(__file__).with_name("rules.md")
SCHEMA: Final = Path(headgate.rules.__file__).with_name("schema.json")

INTRODUCTION: Final = {
    "file": "A document is a mapping with these fields; or a list of rules; or one rule alone.",
    "rule": "`rate`, `limit` or `limits` says how much; exactly one of them.",
    "limit": "An entry of `limits` or of `overrides`; a rate alone, such as `100/minute`, stands for one, too.",
    "calendar": "`calendar: day` is short for `calendar: {period: day}`.",
    "match": "What is left out is not asked. `exempt` uses the same fields.",
    "header": "One of the three, for a header in `match.headers`.",
    "descriptor": "One of Envoy's pairs; a mapping from keys to values says the same.",
    "cost": "`cost: 5` is a fixed cost; this is one that the request brings along.",
    "exempt": "A list of identifier values alone is short for `values`.",
    "test": "A case for `headgate rules test`: [how to test rules](../how-to/test-rules.md).",
    "step": "What happens in a case, one after the other.",
    "request": "Leave out what does not matter.",
}

HEAD: Final = f"""\
<!-- Written by docs/reference/write_rules.py from the table of fields. Change that, and run it again. -->

# Rules

A rule says to whom a limit applies. `match` says which requests it is about, `identifier` whom each of them is counted for, and `rate`
(or `limit`, or `limits`) how much that one may do. Every rule that matches a request applies; the request passes only if all of
them have room, and one that is denied is charged nowhere. [How to write rules](../how-to/write-rules.md) begins with an example.

Rules are YAML or JSON. YAML is read as version 1.2 has it: `no` is a text, `010` is ten, `1:30` is a text. Tags, anchors and aliases
are refused. JSON may have `//` comments. `.json`, `.yaml` and `.yml` at the end of a name say which one it is; otherwise a document that begins
with `{{` or `[` is JSON. A field that is null counts as left out. A document has at most {MAX_BYTES // 2**20} MiB and {MAX_DEPTH} levels,
a set at most {MAX_RULES:,} rules.

`headgate rules check` finds mistakes; `headgate rules schema` prints a JSON Schema that editors complete from.
"""

TAIL: Final = """\
## Identifiers

| Identifier | Whom a request is counted for |
| --- | --- |
| `ip_address` | The client's address; of IPv6 the /64 that it is in. |
| `ip_address/48` | The same, but of IPv6 the /48, or any other prefix from 16 to 64: a second rule, with a higher limit, for those who have many /64. |
| `user_id` | Who it is, if that was proven. |
| `api_key` | The key it came with, under a digest of it. |
| `header:<name>` | What a header says. Anybody can write any header: use one that a proxy of yours sets. |
| `descriptor:<key>` | What Envoy's descriptor of that key says. |
| `path`, `host`, `method` | The request's own, in their canonical spelling. |
| `global` | All requests together. |
| `{name}` | The segment of the path that `{name}` stands for in `path_pattern`. |
| a list of these | Each combination by itself. |
| a template, such as `"{user_id}:{header:x-team}"` | The text that comes of it. |

Keys of `overrides` and entries of `exempt` are identifier values: the value itself for one identifier, the text for a template, and the
values with `|` between them for a list (`~` before a `|` or a `~` that is part of a value). Put numbers into quotes. A value that no request
can have is an error that says which one it has: `2001:db8::/64` for `2001:db8::1`, `/login` for `/login/`.

Secrets are never counted as they are. API keys, and the headers {secrets}, stand in keys, lists,
logs and stores as `sha256:` and 32 digits, and rules name them so: `headgate rules check` tells the digest of a key that it finds in `overrides`.

## Path patterns

| Pattern | Paths |
| --- | --- |
| `/users/7` | This one. |
| `/users/*` | Everything below `/users`: one or more segments. |
| `/users/*/posts` | Exactly one segment in between. |
| `/users/{id}` | Exactly one segment, which `identifier` can use. |
| `/users/**` | `/users` and everything below it. |
| `/**/admin` | Any number of segments before, none included. |

Patterns and paths are brought into one spelling before they are compared: `/caf%C3%A9` and `/café` are the same, and so are `/login`,
`//login/` and `/x/../login`.

## Order and version

Rules are asked from the lowest `priority` to the highest, and rules of the same priority by their names, in whatever order they were
written: a store with one node a rule keeps none. A rule with `stop` leaves out the rules after it, for requests that it is enforced for.

The version of a set is a digest of its rules with their defaults filled in. Equal sets have equal versions, whether they come from
a file, from ZooKeeper or from etcd.

## Defaults

A field of `defaults` holds for every rule that does not have it, as a whole: a rule with a `match` of its own gets nothing from the
default's. A rule that says how much in one way gets nothing of the others: beside a `rate` in the rule, `limit` and `burst` of the
defaults are left out. To do without a default, write null.

## Warnings

`headgate rules check` warns, and nothing else happens, when

- no rule is about every request: whoever finds a way around the others has no limit;
- a rule requires authentication, and no other rule covers its path for those who have none;
- a rule is never asked, because one before it covers all of its requests and stops;
- two rules are about the same requests and the same identifier.
""".replace("{secrets}", ", ".join(f"`{name}`" for name in sorted(SECRET_HEADERS)))


def page() -> str:
    """The whole page."""
    tables = [_table(section) for section in (*SECTIONS, CASE, STEP, REQUEST)]
    return "\n".join([HEAD, *tables, _algorithms(), TAIL])


def _table(section: Section) -> str:
    lines = [f"## {section.name}", "", INTRODUCTION[section.name], ""]
    lines += ["| Field | Value | Default | Meaning | Example |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(field) for field in section.fields]
    meanings = [line for field in section.fields for line in _meanings(field)]
    return "\n".join([*lines, *(["", *meanings] if meanings else []), ""])


def _row(field: Field) -> str:
    names = f"`{field.name}`" + "".join(f", also `{alias}`" for alias in field.aliases)
    default = "**required**" if field.required else field.default
    cells = (names, field.kind.words(), default, field.about, f"`{_shown(field.example)}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example)


def _meanings(field: Field) -> Iterator[str]:
    """What the words mean that a field may have, unless that is said elsewhere."""
    if isinstance(field.kind, Choice) and field.kind is not ALGORITHMS:
        said = "; ".join(f"`{value}`: {meaning}" for value, meaning in field.kind.values.items())
        yield f"- `{field.name}`: {said}."


def _algorithms() -> str:
    rows = [
        f"| `{name}` | {meaning[0].upper()}{meaning[1:]}. |"
        for name, meaning in ALGORITHMS.values.items()
    ]
    also = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALGORITHMS.also.items())
    head = ["## Algorithms", "", "| Algorithm | How it counts |", "| --- | --- |"]
    return "\n".join([*head, *rows, "", f"By other names: {also}.", ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
