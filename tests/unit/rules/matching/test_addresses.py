"""Addresses have one spelling, and headers are believed only as far as those who wrote them."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from headgate.rules.matching.addresses import address_of, client_address

SPELLINGS = {
    "IPv4": ("203.0.113.9", "203.0.113.9", "203.0.113.9"),
    "IPv4 in IPv6": ("::ffff:203.0.113.9", "203.0.113.9", "203.0.113.9"),
    "IPv4 in IPv6, in hex": ("::FFFF:CB00:7109", "203.0.113.9", "203.0.113.9"),
    "a port": ("203.0.113.9:4711", "203.0.113.9", "203.0.113.9"),
    "brackets": ("[2001:db8::1]", "2001:db8::1", "2001:db8::/64"),
    "brackets and a port": ("[2001:db8::1]:443", "2001:db8::1", "2001:db8::/64"),
    "capitals and zeros": ("2001:0DB8:0:0:0:0:0:01", "2001:db8::1", "2001:db8::/64"),
    "a zone": ("fe80::1%eth0", "fe80::1", "fe80::/64"),
    "spaces around it": (" 203.0.113.9 ", "203.0.113.9", "203.0.113.9"),
    "another host of the same /64": (
        "2001:db8:0:0:ffff::2",
        "2001:db8::ffff:0:0:2",
        "2001:db8::/64",
    ),
    "IPv4 behind NAT64": ("64:ff9b::203.0.113.9", "64:ff9b::cb00:7109", "203.0.113.9"),
    "6to4": ("2002:cb00:7109:7::1", "2002:cb00:7109:7::1", "2002:cb00:7109::/48"),
    "6to4 of another": ("2002:cb00:710a:7::1", "2002:cb00:710a:7::1", "2002:cb00:710a::/48"),
    "another /64": ("2001:db8:0:1::1", "2001:db8:0:1::1", "2001:db8:0:1::/64"),
}


@pytest.mark.parametrize("text, spelling, group", SPELLINGS.values(), ids=SPELLINGS)
def test_one_spelling_and_one_key(text: str, spelling: str, group: str) -> None:
    address = address_of(text)
    assert address is not None
    assert (address.text, address.group) == (spelling, group)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "unknown",
            "127.1",
            "1.2.3.04",
            "1.2.3.4.5",
            "0x7f000001",
            "2130706433",
            "1.2.3.4/24",
        ),
        *("1.2.3.4:", "1.2.3.4:x", "1.2.3.4:１", "[1.2.3.4]", "[::1", "[::1]x", "::g", "1" * 5_000),
        "1.2.3.4\n5",
        "1.2.3.4%eth0",
    ],
)
def test_no_address(text: str) -> None:
    assert address_of(text) is None


PROXIES = [ip_network("10.0.0.0/8"), ip_network("2001:db8:f::/48")]
FORWARDED = {
    "no proxy is trusted": ("198.51.100.1", "203.0.113.9", [], "198.51.100.1"),
    "the peer is not trusted": ("198.51.100.1", "203.0.113.9", PROXIES, "198.51.100.1"),
    "one proxy": ("10.0.0.1", "203.0.113.9", PROXIES, "203.0.113.9"),
    "a forged hop on the left": ("10.0.0.1", "1.1.1.1, 203.0.113.9", PROXIES, "203.0.113.9"),
    "two proxies": ("10.0.0.1", "203.0.113.9, 10.0.0.2", PROXIES, "203.0.113.9"),
    "a trusted address beyond an untrusted one": (
        "10.0.0.1",
        "10.0.0.3, 203.0.113.9, 10.0.0.2",
        PROXIES,
        "203.0.113.9",
    ),
    "all hops are trusted": ("10.0.0.1", "10.0.0.3, 10.0.0.2", PROXIES, "10.0.0.3"),
    "no header": ("10.0.0.1", "", PROXIES, "10.0.0.1"),
    "repeated headers": (
        "10.0.0.1",
        ["1.1.1.1", "203.0.113.9", "10.0.0.2"],
        PROXIES,
        "203.0.113.9",
    ),
    "a port": ("10.0.0.1", "203.0.113.9:4711", PROXIES, "203.0.113.9"),
    "IPv6 in brackets": ("2001:db8:f::1", "[2001:db8::9]:1", PROXIES, "2001:db8::9"),
    "a mapped peer": ("::ffff:10.0.0.1", "203.0.113.9", PROXIES, "203.0.113.9"),
    "unknown": ("10.0.0.1", "203.0.113.9, unknown", PROXIES, "10.0.0.1"),
    "garbage on the right": ("10.0.0.1", "203.0.113.9, <script>", PROXIES, "10.0.0.1"),
    "garbage behind a proxy": ("10.0.0.1", "x, 10.0.0.2", PROXIES, "10.0.0.2"),
    "garbage beyond the client": ("10.0.0.1", "x, 203.0.113.9", PROXIES, "203.0.113.9"),
    "an empty hop": ("10.0.0.1", "203.0.113.9,", PROXIES, "10.0.0.1"),
    "more than 4 KB": ("10.0.0.1", "9" * 10_000 + ", 203.0.113.9", PROXIES, "203.0.113.9"),
    "one hop of more than 4 KB": ("10.0.0.1", "9" * 10_000, PROXIES, "10.0.0.1"),
    "an address cut in two by 4 KB": (
        "10.0.0.1",
        "203.0.113.9" + ", 10.0.0.2" * 409 + " " * 10,
        PROXIES,
        "10.0.0.2",
    ),
    "more than 32 hops": ("10.0.0.1", "203.0.113.9" + ", 10.0.0.2" * 40, PROXIES, "10.0.0.2"),
    "exactly 32 hops": ("10.0.0.1", "203.0.113.9" + ", 10.0.0.2" * 31, PROXIES, "203.0.113.9"),
    "no peer": (None, "203.0.113.9", PROXIES, None),
    "a peer that is no address": ("@unix", "203.0.113.9", PROXIES, None),
}


@pytest.mark.parametrize("peer, forwarded, proxies, client", FORWARDED.values(), ids=FORWARDED)
def test_client_address(
    peer: str | None, forwarded: str | list[str], proxies: list[object], client: str | None
) -> None:
    assert client_address(peer, forwarded, proxies) == client  # type: ignore[arg-type]
