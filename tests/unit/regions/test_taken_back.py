"""Rights of dead regions: the others have them, and those who do not know have less."""

from __future__ import annotations

from hypothesis import given, strategies as st

from headgate.regions.escrow import KeyWindow
from headgate.regions.taken_back import TakenBack, escrow_shares

NAMES = ("east", "north", "west")
WINDOW = KeyWindow("api", "ann", "fixed_window:60000000", 90, 60_000_000, 120_000_000)
EVEN = dict.fromkeys(NAMES, 1)


def test_the_others_have_the_rights_of_a_dead_region_in_windows_that_begin_later() -> None:
    dead = {"west": TakenBack(60_000_000, 120_000_000)}
    assert escrow_shares(WINDOW, EVEN, dead) == {"east": 45, "north": 45, "west": 0}
    for start_us in (0, 120_000_000):
        other = WINDOW._replace(start_us=start_us)
        assert escrow_shares(other, EVEN, dead) == {"east": 30, "north": 30, "west": 30}


def test_when_all_regions_are_dead_none_has_rights() -> None:
    dead = dict.fromkeys(NAMES, TakenBack(0))
    assert escrow_shares(WINDOW, EVEN, dead) == dict.fromkeys(NAMES, 0)


@given(
    limit=st.integers(0, 1_000),
    weights=st.tuples(*[st.integers(0, 7)] * 3).filter(any),
    dead=st.sets(st.sampled_from(NAMES)),
    known=st.sets(st.sampled_from(NAMES)),
)
def test_rights_never_exceed_the_limit_even_if_only_some_regions_know(
    limit: int, weights: tuple[int, ...], dead: set[str], known: set[str]
) -> None:
    """Each region works its share out by what it knows; dead ones are stopped."""
    window = WINDOW._replace(limit=limit)
    by_name = dict(zip(NAMES, weights, strict=True))
    told = {name: TakenBack(0) for name in dead}
    total = sum(
        escrow_shares(window, by_name, told if name in known else {})[name]
        for name in NAMES
        if name not in dead
    )
    assert total <= limit
