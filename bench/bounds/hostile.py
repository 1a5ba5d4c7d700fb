"""Bodies that are meant to cost more than they should. Each can be made in any size.

They begin with what the endpoint asks for, so that they are read to their end, and go on with what readers have
stumbled over: strings that do not end, names without end, the same name again, depth, escapes, digits, and long values
in every place that takes text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .calling import Endpoint

Make: TypeAlias = "Callable[[bytes, int], bytes]"
"""`(fields to begin with, size)` → a body."""

BEGINNINGS: Final = {
    "/check": b'"key":"k"',
    "/check/batch": b'"checks":[{"key":"k"}]',
    "/decide": b'"path":"/a","ip":"203.0.113.9"',
    "/reserve": b'"key":"k"',
    "/settle": b'"token":"t","actual":1',
    "/acquire": b'"key":"k","limit":5',
    "/release": b'"key":"k","token":"t"',
    "/api/reset": b'"key":"k"',
    "/api/limits/k": b'"limit":5,"window":60',
    "/api/overrides/k": b'"limit":5,"window":60,"ttl":60',
    "/api/bans/k": b'"ttl":60',
    "/api/rules/r": b'"rule":{"rule_id":"r","identifier":"ip_address","rate":"5/minute"}',
    "/api/rollback": b'"to":"1"',
    "/api/choice/k": b'"algorithm":"token_bucket"',
    "/api/kill-switch": b'"reason":"a try"',
    "/api/kill-switch/r": b'"reason":"a try"',
    "/api/simulate": b'"shape":"own","rate":1,"seconds":0.01',
    "/api/explain": b'"key":"k"',
}
"""What each endpoint needs at least."""


def _filled(begins: bytes, piece: bytes, ends: bytes, size: int) -> bytes:
    return begins + piece * max(1, (size - len(begins) - len(ends)) // len(piece)) + ends


def _numbered(begins: bytes, piece: bytes, ends: bytes, size: int) -> bytes:
    """The same, with a number in each piece, so that no two are alike."""
    length = len(piece % 1_000_000)
    many = max(1, (size - len(begins) - len(ends)) // length)
    return begins + b"".join(piece % (1_000_000 + at) for at in range(many)) + ends


def _fill(begins: bytes, piece: bytes, ends: bytes = b"}") -> Make:
    return lambda fields, size: _filled(b"{" + fields + begins, piece, ends, size)


def _number(begins: bytes, piece: bytes, ends: bytes = b"}") -> Make:
    return lambda fields, size: _numbered(b"{" + fields + begins, piece, ends, size)


ANYWHERE: Final[dict[str, Make]] = {
    "a string that never ends": _fill(b',"', b'\\"', b""),
    "backslashes without end": _fill(b',"', b"\\", b""),
    "a wrong type before a string that never ends": lambda _, size: _filled(
        b'{"key":5,"', b'\\"', b"", size
    ),
    "one name again and again": _fill(b"", b',"a":1'),
    "one long name twice": lambda fields, size: (
        b"{" + fields + b',"' + b"n" * (size // 2) + b'":1,"' + b"n" * (size // 2) + b'":2}'
    ),
    "many names": _number(b"", b',"n%d":1'),
    "many names that are almost known": _number(b"", b',"limit%d":1'),
    "many names with escapes": _number(b"", b',"\\u006e%d":1'),
    "an escaped text": _fill(b',"x":"', b"\\u0041", b'"}'),
    "halves of characters": _fill(b',"x":"', b"\\ud83d", b'"}'),
    "whole pairs": _fill(b',"x":"', b"\\ud83d\\ude00", b'"}'),
    "brackets": _fill(b',"x":', b"[", b""),
    "nested objects": _fill(b',"x":', b'{"x":', b""),
    "brackets in a text": _fill(b',"x":"', b"[{", b'"}'),
    "a list of small objects": _fill(b',"x":[0', b',{"a":{}}', b"]}"),
    "digits": _fill(b',"x":', b"9"),
    "digits behind a point": _fill(b',"x":0.', b"9"),
    "an exponent": _fill(b',"x":1e', b"9"),
    "spaces": _fill(b"", b" "),
    "what is not UTF-8": _fill(b',"x":"', b"\xed\xa0\x80", b'"}'),
    "colons and quotes in a text": _fill(b',"x":"', b':\\":', b'"}'),
    "nothing but opening quotes": lambda _, size: b'"' * size,
    "nothing but commas": lambda _, size: b"{" + b"," * size,
}
"""For every endpoint."""

INSIDE: Final[dict[str, dict[str, Make]]] = {
    "/check": {
        "a long key": lambda _, size: _filled(b'{"key":"', b"k", b'"}', size),
        "a long algorithm": lambda _, size: _filled(b'{"key":"k","algorithm":"', b"k", b'"}', size),
        "a limit of many digits": lambda _, size: _filled(b'{"key":"k","limit":', b"9", b"}", size),
        "a window of many digits": lambda _, size: _filled(
            b'{"key":"k","window":0.', b"9", b"}", size
        ),
    },
    "/check/batch": {
        "checks of nothing": lambda _, size: _filled(b'{"checks":[{}', b",{}", b"]}", size),
        "numbers for checks": lambda _, size: _filled(b'{"checks":[1', b",1", b"]}", size),
        "a check with a name twice, again and again": lambda _, size: _filled(
            b'{"checks":[1', b',{"key":"a","key":"b"}', b"]}", size
        ),
        "checks with names that are almost known": lambda _, size: _numbered(
            b'{"checks":[1', b',{"key":"a","limit%d":1}', b"]}", size
        ),
        "a new window in each check": lambda _, size: _numbered(
            b'{"checks":[{"key":"k"}', b',{"key":"k","window":%d}', b"]}", size
        ),
        "a new fraction of a second in each window": lambda _, size: _numbered(
            b'{"checks":[{"key":"k"}', b',{"key":"k","window":8640.%d}', b"]}", size
        ),
        "a new limit in each check": lambda _, size: _numbered(
            b'{"checks":[{"key":"k"}', b',{"key":"k","limit":%d}', b"]}", size
        ),
        "unclosed strings in each check": lambda _, size: _filled(
            b'{"checks":[{"key":"k"}', b',{"key":5,"\\"":1}', b"]}", size
        ),
    },
    "/decide": {
        "many headers": lambda _, size: _numbered(
            b'{"path":"/a","headers":{"a":"b"', b',"h%d":"v"', b"}}", size
        ),
        "one header in many spellings": lambda _, size: _filled(
            b'{"path":"/a","headers":{"a":"b"', b',"a ":"v"', b"}}", size
        ),
        "many descriptors": lambda _, size: _filled(
            b'{"path":"/a","descriptors":[["a","b"]', b',["a","b"]', b"]}", size
        ),
        "a long path": lambda _, size: _filled(b'{"path":"', b"/a", b'"}', size),
        "dots in a path": lambda _, size: _filled(b'{"path":"', b"/a/..", b'"}', size),
        "slashes": lambda _, size: _filled(b'{"path":"', b"/", b'"}', size),
        "escaped slashes": lambda _, size: _filled(b'{"path":"/', b"%2f", b'"}', size),
        "escapes": lambda _, size: _filled(b'{"path":"/', b"%C3%A9", b'"}', size),
        "backslashes in a path": lambda _, size: _filled(b'{"path":"/a', b"\\\\a", b'"}', size),
        "a scheme in front of a path": lambda _, size: _filled(
            b'{"path":"a', b"a:", b'//x"}', size
        ),
        "a long address": lambda _, size: _filled(b'{"ip":"', b"1.", b'"}', size),
        "a long IPv6 address": lambda _, size: _filled(b'{"ip":"', b"1:", b'"}', size),
        "a long host": lambda _, size: _filled(b'{"host":"', b"a.", b'"}', size),
        "a long method": lambda _, size: _filled(b'{"method":"', b"A", b'"}', size),
        "a long user": lambda _, size: _filled(b'{"user_id":"', b"A", b'"}', size),
    },
    "/api/explain": {
        "many headers": lambda _, size: _numbered(
            b'{"request":{"headers":{"a":"b"', b',"h%d":"v"', b"}}}", size
        ),
        "dots in a path": lambda _, size: _filled(b'{"request":{"path":"', b"/a/..", b'"}}', size),
        "many names in the request": lambda _, size: _numbered(
            b'{"request":{"path":"/"', b',"n%d":1', b"}}", size
        ),
    },
    "/api/rules/r": {
        "many fields that no rule has": lambda _, size: _numbered(
            b'{"rule":{"rule_id":"r"', b',"n%d":1', b"}}", size
        ),
        "many fields that a rule almost has": lambda _, size: _numbered(
            b'{"rule":{"rule_id":"r"', b',"rate%d":1', b"}}", size
        ),
        "many overrides": lambda _, size: _numbered(
            b'{"rule":{"rule_id":"r","identifier":"user_id","rate":"1/s","overrides":{"a":"1/s"',
            b',"u%d":"1/s"',
            b"}}}",
            size,
        ),
        "many limits": lambda _, size: _numbered(
            b'{"rule":{"rule_id":"r","identifier":"user_id","limits":["1/s"',
            b',"%d/s"',
            b"]}}",
            size,
        ),
        "many bad rates": lambda _, size: _numbered(
            b'{"rule":{"rule_id":"r","identifier":"user_id","limits":[{"rate":"x"}',
            b',{"rate":"x%d"}',
            b"]}}",
            size,
        ),
        "a long path pattern": lambda _, size: _filled(
            b'{"rule":{"rule_id":"r","identifier":"user_id","rate":"1/s","match":{"path_pattern":"',
            b"/*",
            b'"}}}',
            size,
        ),
        "a long rate": lambda _, size: _filled(
            b'{"rule":{"rule_id":"r","identifier":"user_id","rate":"', b"1/s;", b'"}}', size
        ),
        "many networks": lambda _, size: _filled(
            b'{"rule":{"rule_id":"r","identifier":"user_id","rate":"1/s","match":{"ip_subnet":["10.0.0.0/8"',
            b',"192.0.2.0/24"',
            b"]}}}",
            size,
        ),
    },
    "/api/reset": {
        "a long prefix": lambda _, size: _filled(b'{"prefix":"', b"k", b'"}', size),
    },
    "/api/bans/k": {
        "a long reason": lambda _, size: _filled(b'{"reason":"', b"k", b'"}', size),
    },
}
"""For one endpoint."""


def bodies_for(endpoint: Endpoint) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """The bodies that are sent to an endpoint, by name, each to be made in a size."""
    fields = BEGINNINGS[endpoint.path]
    for name, make in (*ANYWHERE.items(), *INSIDE.get(endpoint.path, {}).items()):
        yield name, lambda size, make=make: make(fields, size)  # type: ignore[misc]
