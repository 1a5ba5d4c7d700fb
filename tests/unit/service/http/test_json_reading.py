"""One strict reader: whichever way a body is found innocent, a slow and simple reader agrees."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import msgspec
import pytest

from headgate.service.http import bodies
from headgate.service.http.batches import read_batch
from headgate.service.http.json_reading import meant_by, read, strictly
from headgate.service.http.problems import ProblemError

KINDS: Final = (
    bodies.CheckBody,
    bodies.ReserveBody,
    bodies.SettleBody,
    bodies.AcquireBody,
    bodies.ReleaseBody,
    bodies.DecideBody,
)


def names_anything_twice(body: bytes) -> bool:
    """The rule itself, without any shortcut."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        names = [name for name, _ in pairs]
        found = found or len(set(names)) < len(names)
        return dict(pairs)

    json.loads(body, object_pairs_hook=look)
    return found


def any_text(chance: random.Random) -> str:
    pieces = ["a", "user:42", "{", "}", '\\"', "\\\\", ":", ",", "é", "\\u00e9", "[", "limit", " "]
    return "".join(chance.choices(pieces, k=chance.randrange(4)))


def any_value(chance: random.Random, kind: object, depth: int = 0) -> str:
    if kind is int:
        return str(chance.choice((0, 1, 5, 100)))
    if kind is str:
        return f'"{any_text(chance)}"'
    if depth > 2 or chance.random() < 0.6:
        return chance.choice(("1", "null", "true", '"x"', "1.5", '"a:b"'))
    if chance.random() < 0.5:
        many = range(chance.randrange(3))
        return f"[{','.join(any_value(chance, None, depth + 1) for _ in many)}]"
    return any_object(chance, [(any_text(chance), None) for _ in range(chance.randrange(4))], depth)


def any_object(chance: random.Random, fields: list[tuple[str, Any]], depth: int = 0) -> str:
    space = chance.choice(("", " ", "\n"))
    members = (f'"{name}"{space}:{any_value(chance, kind, depth + 1)}' for name, kind in fields)
    return "{" + f",{space}".join(members) + "}"


def any_body(chance: random.Random, kind: type[msgspec.Struct]) -> bytes:
    texts = dict.fromkeys(("key", "token", "algorithm", "method", "path", "user_id"), str)
    types = texts | dict.fromkeys(("limit", "actual", "cost"), int)
    known = [(name, types.get(name)) for name in kind.__struct_fields__ if name in types]
    needed = [one for one in known if one[0] in ("key", "token", "limit", "actual", "path")]
    fields = needed + chance.sample(known, chance.randrange(len(known) + 1))
    if chance.random() < 0.5:
        fields = list(dict(fields).items())
    fields += [(any_text(chance), None) for _ in range(chance.randrange(2))]
    chance.shuffle(fields)
    return any_object(chance, fields).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_is_read_twice_in_any_body(kind: type[msgspec.Struct]) -> None:
    decoder = msgspec.json.Decoder(kind)
    chance = random.Random(kind.__name__)
    refused = accepted = 0
    others: list[str] = []
    for _ in range(4_000):
        body = any_body(chance, kind)
        try:
            decoder.decode(body)
        except msgspec.MsgspecError:
            continue
        if names_anything_twice(body):
            refused += 1
            with pytest.raises(ProblemError, match="given twice"):
                read(decoder, body)
            continue
        try:
            value, unknown = read(decoder, body)
        except ProblemError as error:
            others.append(error.detail)
            continue
        accepted += 1
        assert value == decoder.decode(body)
        assert unknown == len(json.loads(body).keys() - set(kind.__struct_fields__))
    assert all("did you mean" in detail for detail in others)
    assert min(refused, accepted) > 100


def test_a_slot_is_not_asked_for_with_two_limits() -> None:
    with pytest.raises(ProblemError, match="'limit' is given twice"):
        read(msgspec.json.Decoder(bodies.AcquireBody), b'{"key":"a","limit":1,"limit":1000}')


@pytest.mark.parametrize("escaped", [b"a", b"\\u0061"])
def test_a_name_twice_in_one_check_does_not_spoil_the_batch(escaped: bytes) -> None:
    body = b'{"checks":[{"key":"%b"},{"key":"b","limit":1,"limit":2}]}' % escaped
    first, second = read_batch(body, lambda _: None)
    assert isinstance(first, bodies.CheckBody)
    assert first.key == "a"
    assert isinstance(second, ProblemError)


@pytest.mark.parametrize(
    "body",
    [
        b'{"checks":[{"key":"a"}],"checks":[{"key":"b"}]}',
        b'{"checks":[{"key":"a"}],"\\u0063hecks":[{"key":"b"}]}',
        b'{"checks":[1],"checks":[{"key":"b"}]}',
    ],
)
def test_two_lists_of_checks_are_refused(body: bytes) -> None:
    with pytest.raises(ProblemError, match="'checks' is given twice"):
        read_batch(body, lambda _: None)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("limits", "limit"),
        ("Limit", "limit"),
        ("limt", "limit"),
        ("lmiit", "limit"),
        ("window_ms", "window"),
        ("window_seconds", "window"),
        ("algoritm", "algorithm"),
        ("brust", "burst"),
        ("costs", "cost"),
    ],
)
def test_a_typo_is_reported(name: str, meant: str) -> None:
    body = json.dumps({"key": "a", name: 1}).encode()
    with pytest.raises(ProblemError, match=f"did you mean '{meant}'") as caught:
        read(msgspec.json.Decoder(bodies.CheckBody), body)
    assert caught.value.pointer == f"#/{name}"
    problem = read_batch(b'{"checks":[%b]}' % body, lambda _: None)[0]
    assert isinstance(problem, ProblemError)


@pytest.mark.parametrize("name", ["rate", "period", "interval"])
def test_another_name_for_the_limit_is_not_ignored(name: str) -> None:
    body = json.dumps({"key": "a", name: "5/minute"}).encode()
    with pytest.raises(ProblemError, match=f"no field '{name}'; write 'limit' and") as caught:
        read(msgspec.json.Decoder(bodies.CheckBody), body)
    assert caught.value.pointer == f"#/{name}"
    body = json.dumps({"key": "a", "limit": 1, name: 1}).encode()
    assert read(msgspec.json.Decoder(bodies.AcquireBody), body)[1] == 1  # Slots have no window.


@pytest.mark.parametrize("name", ["trace", "host", "post", "region", "x", "", "limit_group"])
def test_an_unknown_field_of_a_newer_client_is_accepted(name: str) -> None:
    body = json.dumps({"key": "a", name: 1}).encode()
    assert read(msgspec.json.Decoder(bodies.CheckBody), body)[1] == 1


def test_a_name_is_near_by_one_change_only() -> None:
    known = bodies.CheckBody.__struct_fields__
    assert [meant_by(name, known) for name in ("limitss", "limix", "winbow", "wimdov", "kkey")] == [
        None,
        "limit",
        "window",
        None,
        "key",
    ]


def test_little_is_remembered_of_a_long_name() -> None:
    """A caller may send a thousand names, each as long as a body may be."""
    meant_by.cache_clear()
    for number in range(10):
        body = json.dumps({"key": "a", f"{'x' * 1_000}{number}": 1}).encode()
        assert read(msgspec.json.Decoder(bodies.CheckBody), body)[1] == 1
    assert meant_by.cache_info().currsize == 1


def test_a_name_twice_is_found_however_deep_it_is() -> None:
    with pytest.raises(ProblemError, match="'b' is given twice"):
        strictly(b'{"a":[[{"b":1,"c":[],"b":2}]]}')
