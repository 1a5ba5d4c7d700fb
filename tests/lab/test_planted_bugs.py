"""The checker finds every planted bug, and finds nothing where the same run goes without it."""

from __future__ import annotations

import pytest

from tests.lab.planted import PLANTED

SEEDS = range(5)

BLIND_WITHOUT_RECEIPTS = {
    "7 stored time via tostring: 14 digits": "a twentieth of a millisecond, less than calls take",
    "26 unknown counted as denied": "denials while the store is slow are excused",
    "a clock read outside the lock": "calls are as far apart as their times",
}
"""What intervals alone cannot show, and why; receipts can."""


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_bug_is_found(words: str) -> None:
    for seed in SEEDS:
        verdict = PLANTED[words](seed).verdict()
        assert not verdict.holds, f"seed {seed}: {verdict.figures}"


@pytest.mark.parametrize("words", PLANTED)
def test_the_same_run_without_the_bug_is_clean(words: str) -> None:
    for seed in SEEDS:
        verdict = PLANTED[words](seed, clean=True).verdict()
        assert verdict.holds, f"seed {seed}: {verdict.findings}"


def found_without_receipts(words: str) -> int:
    """In how many runs a stranger sees it, who knows when a call began, when it ended, and whether it passed."""
    found = 0
    for seed in SEEDS:
        book = PLANTED[words](seed)
        book.operations = [
            one._replace(
                ver=None, now_us=None, remaining=None, retry_after_us=None, reset_after_us=None
            )
            for one in book.operations
        ]
        found += not book.verdict().holds
    return found


@pytest.mark.parametrize("words", PLANTED)
def test_it_is_found_in_a_history_without_receipts_too(words: str) -> None:
    """Except where that cannot be; the list of those is exact."""
    assert bool(found_without_receipts(words)) is (words not in BLIND_WITHOUT_RECEIPTS)
