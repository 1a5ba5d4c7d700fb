"""The body of `/docs`: each operation of the OpenAPI document with its fields, an example, and a form that sends it."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]
MAX_DEPTH: Final = 3
"""How many levels of nested fields are listed."""
MAX_EXACT: Final = 2**53 - 1


class ApiField(NamedTuple):
    """A row of a table of fields."""

    name: str
    type: str
    required: bool
    about: str


class ApiPage:
    """Writes the page for one OpenAPI document."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._schemas: dict[str, Schema] = document.get("components", {}).get("schemas", {})

    def html(self) -> str:
        """The content of the page's `main`."""
        by_tag: dict[str, list[str]] = {}
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                tag = (operation.get("tags") or ["other"])[0]
                by_tag.setdefault(tag, []).append(self._operation(method, path, operation))
        links = [f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in by_tag]
        sections = (
            f'<h2 class="tag" id="{escape(tag)}">{escape(tag)}</h2>{"".join(operations)}'
            for tag, operations in by_tag.items()
        )
        about = prose(self._document["info"].get("description", ""))
        return (
            f'<h1>The API</h1><p class="lead">{about}</p>'
            f'<nav>{"".join(links)}<a href="/openapi.json">openapi.json</a><a href="/">what runs</a></nav>'
            '<label>Token, if this service needs one<input id="token" type="password" autocomplete="off"></label>'
            + "".join(sections)
            + '<script src="/docs.js" defer></script>'
        )

    def _operation(self, method: str, path: str, operation: Schema) -> str:
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        parameters = operation.get("parameters", [])
        fields = [] if body is None else list(self._fields(body["schema"]))
        parts = [f"<p>{prose(operation.get('description', ''))}</p>"]
        if parameters:
            parts.append(
                "<h4>Parameters</h4>" + _table([self._parameter(one) for one in parameters])
            )
        if fields:
            parts.append("<h4>Fields of the body</h4>" + _table(fields))
        parts.append("<h4>Try it</h4>" + self._form(method, path, parameters, body))
        parts.append("<h4>Answers</h4>" + self._answers(operation["responses"]))
        name = f"{method.upper()} {path}"
        return (
            f'<details class="operation" id="{escape(name)}"><summary><b>'
            f'<span class="verb">{escape(method.upper())}</span> '
            f'{escape(path)}</b><span class="about">{escape(operation.get("summary", ""))}</span></summary>'
            f"<div>{''.join(parts)}</div></details>"
        )

    def _answers(self, responses: Schema) -> str:
        """Each status with its meaning; fields and examples of a success can be unfolded."""
        rows = []
        for status, response in responses.items():
            shown = prose(response.get("description", ""))
            media = response.get("content", {}).get("application/json", {})
            if status.startswith("2") and "schema" in media:
                fields = _table(
                    [one._replace(required=False) for one in self._fields(media["schema"])]
                )
                examples = (one["value"] for one in media.get("examples", {}).values())
                more = fields + "".join(f"<pre>{_json(one)}</pre>" for one in examples)
                shown = f"<details><summary>{shown}</summary>{more}</details>" if more else shown
            rows.append(f"<dt><code>{escape(status)}</code></dt><dd>{shown}</dd>")
        return f'<dl class="answers">{"".join(rows)}</dl>'

    def _form(self, method: str, path: str, parameters: list[Schema], body: Schema | None) -> str:
        inputs = "".join(
            f'<label>{escape(one["name"])}<input name="{escape(one["name"])}" data-in="{escape(one["in"])}"'
            f"{' required' if one.get('required') else ''}></label>"
            for one in parameters
            if one["in"] != "header"
        )
        if body is not None:
            example = body.get("example", self._example(body["schema"]))
            text = json.dumps(example, indent=2, ensure_ascii=False)
            inputs += (
                f'<label>Body<textarea name="body" spellcheck="false" rows="{text.count(chr(10)) + 1}">'
                f"{escape(text)}</textarea></label>"
            )
        return (
            f'<form data-method="{escape(method.upper())}" data-path="{escape(path)}">{inputs}'
            '<button type="submit">Send</button><output></output></form>'
        )

    # Schemas

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        return self._schemas[name] if name else schema

    def _fields(
        self, schema: Schema, prefix: str = "", depth: int = MAX_DEPTH
    ) -> Iterator[ApiField]:
        """The fields of an object, and of nested objects."""
        schema = self._resolved(schema)
        for part in schema.get("anyOf", ()):
            yield from self._fields(part, prefix, depth)
        if "items" in schema and depth:
            yield from self._fields(schema["items"], f"{prefix.removesuffix('.')}[].", depth)
        required = schema.get("required", ())
        for name, field in schema.get("properties", {}).items():
            about = field.get("description", "")
            default = field.get("default")
            if default not in (None, [], {}):
                about = f"{about} Default: `{json.dumps(default)}`.".strip()
            yield ApiField(f"{prefix}{name}", self.type_of(field), name in required, about)
            if depth > 1:
                yield from self._fields(_without_primitives(field), f"{prefix}{name}.", depth - 1)

    def _parameter(self, parameter: Schema) -> ApiField:
        kind = f"{self.type_of(parameter.get('schema', {}))}, in the {parameter['in']}"
        required = bool(parameter.get("required"))
        return ApiField(parameter["name"], kind, required, parameter.get("description", ""))

    def type_of(self, schema: Schema) -> str:
        """A type in words: `integer, 1 to 100`, `list of string`, `string or null`."""
        schema = self._resolved(schema)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " or ".join(json.dumps(one) for one in values)
        if "anyOf" in schema:
            kinds = dict.fromkeys(map(self.type_of, schema["anyOf"]))
            if "number" in kinds:
                kinds.pop("integer", None)
            return " or ".join(kinds)
        kind = schema.get("type", "any")
        if isinstance(kind, list):
            return " or ".join(kind)
        if kind == "array":
            inner = schema.get("items") or {}
            return f"list of {self.type_of(inner)}" if inner else "list"
        return f"{kind}{_bounds(schema)}"

    def _example(self, schema: Schema, depth: int = MAX_DEPTH) -> Any:
        """An example body, if the document has none: its required fields, or all if none are required."""
        schema = self._resolved(schema)
        if schema.get("examples"):
            return schema["examples"][0]
        if schema.get("default") is not None:
            return schema["default"]
        if "anyOf" in schema:
            return self._example(schema["anyOf"][0], depth)
        if "enum" in schema or "const" in schema:
            return schema.get("enum", [schema.get("const")])[0]
        kind = schema.get("type")
        if kind == "object" and depth:
            fields = schema.get("properties", {})
            wanted = schema.get("required") or fields
            return {
                name: self._example(fields[name], depth - 1) for name in wanted if name in fields
            }
        plain = {
            "string": "",
            "integer": 1,
            "number": 1,
            "boolean": False,
            "array": [],
            "object": {},
        }
        return plain.get(str(kind))


def _without_primitives(schema: Schema) -> Schema:
    """A field's schema, if it has fields itself: a list of lists has none worth a row."""
    items = schema.get("items")
    return {} if isinstance(items, dict) and items.get("type") == "array" else schema


def _bounds(schema: Schema) -> str:
    """The bounds of a number or a string, if they are informative."""
    if "minLength" in schema or "maxLength" in schema:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        return f", {low} characters or more" if high is None else f", {low} to {high:,} characters"
    low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    bounds = [] if low is None else [f"at least {low:,}"]
    if above is not None:
        bounds.append(f"above {above:,}")
    if high is not None and high < MAX_EXACT:
        bounds.append(f"at most {high:,}")
    return "".join(f", {one}" for one in bounds)


def _table(fields: list[ApiField]) -> str:
    if not fields:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one.name)}</code></td>"
        f"<td>{escape(one.type)}{'<b> · required</b>' if one.required else ''}</td>"
        f"<td>{prose(one.about)}</td></tr>"
        for one in dict.fromkeys(fields)
    )
    head = "<tr><th>Name</th><th>Type</th><th>Meaning</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _json(value: Any) -> str:
    return escape(json.dumps(value, indent=2, ensure_ascii=False))


def prose(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
