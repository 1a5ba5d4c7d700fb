"""What callers are told: JSON's words, never those of Python or of a library."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headgate.service.http.bodies import DecideBody, SettleBody
from headgate.service.http.json_reading import read, strictly
from headgate.service.http.problems import ProblemError
from headgate.service.http.value_errors import of_msgspec, of_pydantic


@pytest.mark.parametrize(
    "body, text, pointer",
    [
        (b"[]", "the body must be an object, not a list", "#"),
        (b'{"headers": {"a": 1}}', "every value in headers must be text, not a number", "#/headers"),
        (b'{"headers": []}', "headers must be an object, not a list", "#/headers"),
        (b'{"cost": 1.5}', "cost must be a whole number or null, not a decimal number", "#/cost"),
        (b'{"cost": true}', "cost must be a whole number or null, not true or false", "#/cost"),
        (b'{"path": null}', "path must be text, not null", "#/path"),
        (b'{"descriptors": [["a"]]}', "descriptors 0 must be a list of 2", "#/descriptors/0"),
        (b'{"descriptors": [["a", {}]]}', "descriptors 0 1 must be text, not an object",
         "#/descriptors/0/1"),
        (b'{"cost": 1e999}', "cost: number out of range", "#/cost"),
    ],
)  # fmt: skip
def test_a_check_is_refused_in_plain_words(body: bytes, text: str, pointer: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(body, type=DecideBody)
    assert of_msgspec(str(refused.value)) == (text, pointer)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(b"{}", type=SettleBody)
    assert of_msgspec(str(refused.value)) == ("token is missing", "#")


class Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    many: Annotated[int, Field(ge=1, le=2**53 - 1)] = 1
    long: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    why: Annotated[str, Field(min_length=2, max_length=3)] = "why"
    sure: bool = True
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list
    )
    more: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize(
    "body, text, pointer",
    [
        ([], "the body must be an object, not a list", "#"),
        ({"many": 1.5}, "many must be a whole number, not a decimal number", "#/many"),
        ({"many": "1"}, "many must be a whole number, not text", "#/many"),
        ({"many": 0}, "many must be at least 1", "#/many"),
        ({"many": 2**53}, "many must be at most 9007199254740991", "#/many"),
        ({"long": None}, "long must be a number, not null", "#/long"),
        ({"long": 0}, "long must be more than 0", "#/long"),
        ({"why": {}}, "why must be text, not an object", "#/why"),
        ({"why": "x"}, "why must have at least 2 characters", "#/why"),
        ({"why": "long"}, "why must have at most 3 characters", "#/why"),
        ({"sure": 1}, "sure must be true or false, not a number", "#/sure"),
        ({"pairs": [["a"]]}, "pairs 0 must have at least 2 entries", "#/pairs/0"),
        ({"pairs": "ab"}, "pairs must be a list, not text", "#/pairs"),
        ({"more": []}, "more must be an object, not a list", "#/more"),
        ({"a/b": 1}, "a/b is an unknown field; leave it out", "#/a~1b"),
    ],
)
def test_management_refuses_in_the_same_words(body: Any, text: str, pointer: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Sent.model_validate(body)
    (error,) = refused.value.errors()
    assert of_pydantic({**error, "loc": ("body", *error["loc"])}) == (text, pointer)


def test_a_value_outside_of_the_body_has_no_pointer() -> None:
    error = {"type": "int_parsing", "loc": ("query", "limit"), "input": "x", "msg": ""}
    text = "limit in the query must be a whole number, not text"
    assert of_pydantic(error) == (text, None)


@pytest.mark.parametrize(
    "text", ["\\ud800", "\\uD83Dx", "\\ude00", "\\ud800\\u0041", "\\\\\\udfff"]
)
def test_a_lone_surrogate_is_reported_as_such(text: str) -> None:
    body = f'{{"path": "{text}", "unknown": 1}}'.encode()
    for reading in (lambda: read(msgspec.json.Decoder(DecideBody), body), lambda: strictly(body)):
        with pytest.raises(ProblemError, match="is half a surrogate pair") as refused:
            reading()
        assert refused.value.kind.status == 400


@pytest.mark.parametrize("text", ["\\ud83d\\ude00", "\\\\ud800", "\\u0041", "\\n"])
def test_whole_characters_may_be_escaped(text: str) -> None:
    asked, _ = read(msgspec.json.Decoder(DecideBody), f'{{"path": "{text}"}}'.encode())
    assert asked.path
