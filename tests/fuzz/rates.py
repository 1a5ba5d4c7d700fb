"""Rates: any text is a rate that says what it is, or is refused in words."""

from __future__ import annotations

from typing import Final

from headgate.algorithms import ALGORITHMS
from headgate.errors import UsageError
from headgate.rate import Rate, limits_of

MAX_MESSAGE: Final = 4_000
"""A message shows the text that it is about, and a text has at most 1,000 characters, each up to ten when escaped."""


def check(data: bytes) -> None:
    """Nothing but `UsageError` escapes, and what a rate says of itself is read as the same rate."""
    text = data.decode(errors="surrogateescape")
    try:
        rates = Rate.parse_all(text)
    except UsageError as error:
        assert 0 < len(str(error)) <= MAX_MESSAGE, len(str(error))  # noqa: PT017
        return
    again = "; ".join(map(str, rates))
    assert Rate.parse_all(again) == rates, again
    for algorithm in (None, *ALGORITHMS):
        try:
            limits = limits_of(text, algorithm)
        except UsageError:
            continue
        assert [limit.limit for limit in limits] == [rate.limit for rate in rates], text
