"""JSON Schema of a rules document, generated from the table of fields, for completion in editors.

A schema can check shapes, names and bounds. Only `headgate rules check` can check the meaning of rates, patterns and
address ranges, and duplicate ids.
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
    # The parser leaves test cases to whoever runs them; an editor should know them all the same.
    file["properties"]["tests"]["anyOf"][0]["items"] = CASE.schema()
    file["if"] = {"not": {"required": ["defaults"]}}
    file["then"] = {"properties": {"rules": {"items": {"$ref": "#/$defs/whole_rule"}}}}
    return {
        "$schema": DIALECT,
        "title": "Headgate rules",
        "description": "Who is limited, and how much. `headgate rules check` finds what a schema cannot.",
        # A chain of `if`s instead of `anyOf`, so that an editor knows which one is being written.
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
    """The schema as the text of a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _whole_rule() -> dict[str, Any]:
    """A rule that is not completed by defaults."""
    required = [
        {"anyOf": [{"required": [name]} for name in (one.name, *one.aliases)]}
        for one in RULE.required.values()
    ]
    how_much = {"anyOf": [{"required": [name]} for name in _HOW_MUCH]}
    return {"$ref": f"#/$defs/{RULE.name}", "allOf": [*required, how_much]}
