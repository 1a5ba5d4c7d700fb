"""The page /docs: every operation with its fields and a form, nothing from elsewhere, nothing unescaped."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headgate.service.http.api_page import ApiPage
from tests.service.inside import Inside, inside


def fetched(path: str) -> tuple[str, dict[str, str]]:
    async def story(service: Inside) -> tuple[str, dict[str, str]]:
        answer = await service.ask("GET", path)
        assert answer.status_code == 200
        return answer.text, dict(answer.headers)

    return inside(story)


def schema() -> dict[str, Any]:
    async def story(service: Inside) -> dict[str, Any]:
        found: dict[str, Any] = service.app.openapi()
        return found

    return inside(story)


def test_every_operation_has_a_form() -> None:
    page, _ = fetched("/docs")
    forms = set(re.findall(r'<form data-method="(\w+)" data-path="([^"]+)">', page))
    paths = schema()["paths"]
    assert forms == {(method.upper(), path) for path in paths for method in paths[path]}


def test_fields_have_types_and_the_example_can_be_sent_as_it_is() -> None:
    page, _ = fetched("/docs")
    check = page.partition('id="POST /check"')[2].partition('id="POST /check/batch"')[0]
    assert "<td><code>key</code></td><td>string<b> · required</b></td>" in check
    assert "<td><code>window</code></td><td>number</td>" in check
    body = re.search(r"<textarea[^>]*>(.*?)</textarea>", check, re.DOTALL)
    assert body is not None
    text = body[1].replace("&quot;", '"')

    async def story(service: Inside) -> int:
        headers = {"content-type": "application/json"}
        answer = await service.client.post("/check", content=text, headers=headers)
        return answer.status_code

    assert inside(story) == 200


def test_fields_of_list_items_are_listed() -> None:
    page, _ = fetched("/docs")
    assert "<td><code>checks[].key</code></td>" in page
    assert "<td><code>decisions[].allowed</code></td>" in page


def test_nothing_is_loaded_from_elsewhere_and_no_script_but_our_own() -> None:
    page, headers = fetched("/docs")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'self'; connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/docs.js" defer>']
    assert not re.search(r'(?:src|href)="(?!/|#)', page)
    assert not re.search(r"\son\w+=|\sstyle=", page)
    script, headers = fetched("/docs.js")
    assert headers["content-type"].startswith("text/javascript")
    assert "innerHTML" not in script
    assert "script-src" not in fetched("/about")[1]["content-security-policy"]


@pytest.mark.parametrize(
    "schema, told",
    [
        ({"type": "integer", "minimum": 1, "maximum": 1000}, "integer, at least 1, at most 1,000"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, above 0"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "number or null"),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"enum": ["ok", "stale"]}, '"ok" or "stale"'),
        ({"type": "string", "maxLength": 500}, "string, 0 to 500 characters"),
        ({}, "any"),
    ],
)
def test_types_in_words(schema: dict[str, Any], told: str) -> None:
    assert ApiPage({"paths": {}}).type_of(schema) == told


def test_displayed_text_is_escaped() -> None:
    hostile = '<img src=x onerror="alert(1)">'
    operation = {
        "summary": hostile,
        "description": hostile,
        "parameters": [{"name": hostile, "in": "query", "description": hostile}],
        "responses": {"200": {"description": hostile}},
    }
    document = {"info": {"description": hostile}, "paths": {f"/{hostile}": {"get": operation}}}
    assert "<img" not in ApiPage(document).html()
