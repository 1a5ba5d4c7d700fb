"""Numbers as people write them, and bars that do not lie."""

from fractions import Fraction

import pytest

from headgate.cli._formatting import (
    approximate_duration,
    count,
    duration,
    iso,
    moment,
    number,
    short,
)
from headgate.cli._picture import _height
from headgate.cli._terminal import PLAIN, escaped, to_ascii


@pytest.mark.parametrize(
    "length_us, text",
    [
        (1, "1 µs"),
        (Fraction(10, 7), "about 1.43 µs"),
        (999, "999 µs"),
        (1_500, "1.5 ms"),
        (600_000, "600 ms"),
        (1_000_000, "1 s"),
        (Fraction(60_000_000, 7), "about 8.57 s"),
        (59_999_999, "about 60 s"),
        (60_000_000, "1 min"),
        (90_000_000, "1 min 30 s"),
        (3_599_900_000, "about 60 min"),
        (6_000_000_000, "1 h 40 min"),
        (86_400_000_000, "1 d"),
        (31 * 86_400_000_000, "31 d"),
        (31 * 86_400_000_000 - 3_600_000_000, "30 d 23 h"),
        (1_098 * 86_400_000_000, "1098 d"),
    ],
)
def test_lengths_of_time_are_short_and_honest(length_us: int | Fraction, text: str) -> None:
    assert approximate_duration(length_us) == text
    assert duration(length_us) == text.removeprefix("about ")


@pytest.mark.parametrize(
    "amount, text",
    [
        (0, "0"),
        (9_999, "9999"),
        (10_000, "10k"),
        (105_000, "105k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_234_567, "1.23M"),
        (2**53, "9.01P"),
        (2**53 * 1_000, "9.01e+03P"),
    ],
)
def test_short_numbers(amount: int, text: str) -> None:
    assert short(amount) == text


def test_numbers_keep_their_digits_while_they_can_be_read() -> None:
    assert (count(1, "unit"), count(0, "unit"), count(1_000, "unit")) == (
        "1 unit",
        "0 units",
        "1,000 units",
    )
    assert (number(999_999_999_999), number(10**12)) == ("999,999,999,999", "1T")


def test_moments_are_on_the_zone_s_own_clock() -> None:
    at_us = 1_806_195_600_000_000  # The hour in which Berlin's clocks go forward.
    assert moment(at_us, "Europe/Berlin") == "28 Mar 2027 03:00 CEST"
    assert iso(at_us - 1_000_000, "Europe/Berlin") == "2027-03-28T01:59:59+01:00"


@pytest.mark.parametrize("full", [1, 2, 3, 7, 100, 10**15])
@pytest.mark.parametrize("most", [8, 16, 32])
def test_a_bar_is_empty_or_full_only_if_it_is_true(full: int, most: int) -> None:
    assert (_height(0, full, most), _height(full, full, most)) == (0, most)
    if full > 1:
        assert _height(1, full, most) >= 1
        assert _height(full - 1, full, most) <= most - 1


def test_every_drawing_character_has_a_plain_one() -> None:
    drawn = "".join(PLAIN)
    assert to_ascii(drawn).isascii()
    assert len(to_ascii(drawn)) == len(drawn)


def test_escaping_leaves_readable_text_alone() -> None:
    assert escaped("Zürich 東京 'a b'") == "Zürich 東京 'a b'"
    assert escaped("a\tb\x7f\r\n") == r"a\tb\x7f\r\n"
