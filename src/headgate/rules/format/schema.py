"""JSON Schema of a rules document, made from the table of fields: what editors complete from.

A schema can tell shapes, names and bounds. What a rate, a pattern or a range of addresses means, and whether two rules
have one id, only `headgate rules check` can tell.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .cases import CASE, REQUEST, STEP
from .fields import DEFAULTS, FILE, RULE, SECTIONS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FILE_NAME: Final = "rules.schema.json"
_HOW_MUCH: Final = ("rate", "limit", "limits")


def json_schema() -> dict[str, Any]:
    """The schema: of a file, a list of rules, or one rule."""
    sections = (*SECTIONS, DEFAULTS, CASE, STEP, REQUEST)
    definitions = {section.name: section.definition() for section in sections}
    definitions["whole_rule"] = _whole_rule()
    file = definitions[FILE.name]
    # The parser leaves cases to whoever runs them; an editor should know them all the same.
    file["properties"]["tests"]["anyOf"][0]["items"] = CASE.schema()
    file["if"] = {"not": {"required": ["defaults"]}}
    file["then"] = {"properties": {"rules": {"items": {"$ref": "#/$defs/whole_rule"}}}}
    return {
        "$schema": DIALECT,
        "title": "Headgate rules",
        "description": "Who is limited, and how much. `headgate rules check` finds what a schema cannot.",
        # One after the other and not `anyOf`, so that an editor knows which one is being written.
        "if": {"type": "array"},
        "then": {"items": {"$ref": "#/$defs/whole_rule"}},
        "else": {
            "if": {"required": ["rule_id"]},
            "then": {"$ref": "#/$defs/whole_rule"},
            "else": {"$ref": f"#/$defs/{FILE.name}"},
        },
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as a file has it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _whole_rule() -> dict[str, Any]:
    """A rule that no defaults complete."""
    required = [
        {"anyOf": [{"required": [name]} for name in (one.name, *one.aliases)]}
        for one in RULE.required.values()
    ]
    how_much = {"anyOf": [{"required": [name]} for name in _HOW_MUCH]}
    return {"$ref": f"#/$defs/{RULE.name}", "allOf": [*required, how_much]}
