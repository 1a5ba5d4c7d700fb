"""Keys: how states are named in Redis, so that no two states ever share a name.

    hg:s{tag}namespace:rule:algorithm.window:=key        the state of a key
    hg:f…  hg:l…  hg:p…  hg:e…  hg:v…                    next to it: refunds and resets, line, places, ends of slots,
                                                         version
    hg:r{tag}namespace:token                             a reservation
    hg:b{tag}namespace:part                              a part of the board, see headgate/board

Namespace and rule are escaped; the key (or token) comes last and unescaped, so the name can be parsed and is unique.
Long keys, or all keys if configured, are replaced by a keyed hash (`#` instead of `=`).

`{tag}` is used on Cluster only. It decides the slot, and is a hash computed here, never text from a user: a key with
braces cannot separate a state from its reservation, and an attacker without the secret cannot choose a slot. All states
of one key share a slot; with `colocate`, all states of one tenant can.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...algorithms import Limit

PREFIX: Final = "hg:"
MAX_PLAIN_BYTES: Final = 256
NO_RULE: Final = "-"


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Names the states of one engine and namespace."""

    namespace: str = ""
    clustered: bool = False
    secret: bytes = b""
    """The key of the hashes; must be the same on every node."""
    hash_all: bool = False
    """Whether to store only hashes, so that the store never sees who is limited."""
    colocate: Callable[[str], str] | None = field(default=None)
    """Groups keys on Cluster: keys with the same result share a slot."""
    max_plain_bytes: int = MAX_PLAIN_BYTES
    """Longer keys are replaced by a hash."""

    def state_prefix(self, limit: Limit, rule: str | None) -> bytes:
        """The common start of all names of one limit and rule, after the tag."""
        where = NO_RULE if rule is None else "=" + _escaped(rule)
        identity = limit.identity.replace(":", ".")
        return f"{_escaped(self.namespace)}:{where}:{identity}:".encode()

    def state(self, prefix: bytes, key: str) -> bytes:
        """The name of a state."""
        return b"hg:s" + self.tag(key) + prefix + self.shown(key)

    def beside(self, state: bytes) -> bytes:
        """The name of the set that holds when slots of a state expire."""
        return b"hg:e" + state[4:]

    def plain_before(self, prefix: bytes) -> tuple[bytes, int]:
        """`(before, longest)`: the name of an ASCII key up to that length is `before` followed by the key."""
        as_they_are = not self.clustered and not self.hash_all
        return b"hg:s" + prefix + b"=", self.max_plain_bytes if as_they_are else 0

    def reservation(self, tag: bytes, token: str) -> bytes:
        """The name of a reservation's record."""
        return b"hg:r" + tag + f"{_escaped(self.namespace)}:{token}".encode()

    def board(self, part: str) -> bytes:
        """The name of a part of the board; all parts share a slot."""
        return b"hg:b" + self.tag("board") + f"{_escaped(self.namespace)}:{part}".encode()

    def shown(self, key: str) -> bytes:
        """The stored form of a key: itself, or its hash."""
        text = key.encode()
        if self.hash_all or len(text) > self.max_plain_bytes:
            return b"#" + blake2b(text, key=self.secret, digest_size=16).hexdigest().encode()
        return b"=" + text

    def tag(self, key: str) -> bytes:
        """The hash tag of a key; empty without slots."""
        if not self.clustered:
            return b""
        group = key if self.colocate is None else self.colocate(key)
        digest = blake2b(
            f"{self.namespace}\0{group}".encode(),
            key=self.secret,
            digest_size=9,
            person=b"headgate",
        ).digest()
        return b"{" + urlsafe_b64encode(digest) + b"}"

    def pattern(self, prefix: str) -> bytes:
        """The SCAN pattern for states of this namespace whose key begins with `prefix`."""
        tag = "{*}" if self.clustered else ""
        start = _glob_escaped(_escaped(self.namespace))
        key = f"={_glob_escaped(prefix)}" if prefix else "[=#]"
        return f"{PREFIX}s{tag}{start}:*:*:{key}*".encode()

    def parse(self, name: bytes) -> tuple[str | None, str, str] | None:
        """`(rule, identity, key)` of a state's name; `None` if it is not a state of this namespace.

        For a hashed key only the hash can be returned, with a `#` in front.
        """
        try:
            text = name.decode()
            start = text.index("}") + 1 if self.clustered else len(PREFIX) + 1
            namespace, rule, identity, key = text[start:].split(":", 3)
        except ValueError:
            return None
        if namespace != _escaped(self.namespace) or key[:1] not in ("=", "#"):
            return None
        return (
            None if rule == NO_RULE else _unescaped(rule[1:]),
            identity.replace(".", ":"),
            key if key[0] == "#" else key[1:],
        )

    def is_hashed(self, name: bytes) -> bool:
        """Whether a state's name contains a hash of its key."""
        return name.decode().split(":", 4)[4][:1] == "#"


class StatePrefix(NamedTuple):
    """The common part of the names of all states of one limit."""

    namespace: str
    rule: str | None
    identity: str


def split_state(name: bytes) -> tuple[bytes, bytes]:
    """`(prefix, key)` of a state's name, if it is not on Cluster and its key is not hashed; else `ValueError`."""
    _, _, _, _, shown = name.split(b":", 4)
    if name[:4] != b"hg:s" or shown[:1] != b"=":
        raise ValueError("this is not the name of a state")
    start = len(name) - len(shown) + 1
    return name[:start], name[start:]


def parse_prefix(prefix: bytes) -> StatePrefix:
    """Parse the first part of `split_state`; raises `ValueError` if it is invalid."""
    namespace, rule, identity, _ = prefix[4:].decode().split(":")
    if rule != NO_RULE and rule[:1] != "=":
        raise ValueError("this is not the name of a state")
    return StatePrefix(
        _unescaped(namespace),
        None if rule == NO_RULE else _unescaped(rule[1:]),
        identity.replace(".", ":"),
    )


def parse_reservation(name: bytes) -> tuple[str, str]:
    """`(namespace, token)` of a reservation's name outside of Cluster; else `ValueError`."""
    namespace, _, token = name[4:].decode().partition(":")
    if name[:4] != b"hg:r" or not token:
        raise ValueError("this is not the name of a reservation")
    return _unescaped(namespace), token


def slot_of(name: bytes) -> int:
    """The Cluster slot of a name (CRC16 of its hash tag, modulo 16384)."""
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    crc = 0
    for byte in name:
        crc = ((crc << 8) & 0xFFFF) ^ _CRC16[(crc >> 8) ^ byte]
    return crc % 16_384


def _crc16_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021) & 0xFFFF if crc & 0x8000 else (crc << 1) & 0xFFFF
        table.append(crc)
    return tuple(table)


_CRC16: Final = _crc16_table()


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")


def _unescaped(text: str) -> str:
    text = text.replace("%7D", "}").replace("%7B", "{").replace("%3A", ":")
    return text.replace("%25", "%")


def _glob_escaped(text: str) -> str:
    return "".join("\\" + char if char in "*?[]\\" else char for char in text)
