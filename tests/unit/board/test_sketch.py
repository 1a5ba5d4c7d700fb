import random
from collections import Counter

from hypothesis import given, strategies as st

from headgate.board.sketch import Hot, RecentKeys, SpaceSaving, merged

BATCHES = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=30), max_size=20)


@given(BATCHES, st.integers(1, 6))
def test_every_count_brackets_the_truth_and_no_heavy_key_is_missing(
    batches: list[list[str]], capacity: int
) -> None:
    sketch, truth = SpaceSaving(capacity), Counter[str]()
    for batch in batches:
        sketch.add(Counter(batch))
        truth.update(batch)
    shown = {hot.key: hot for hot in sketch.top()}
    assert len(shown) <= capacity
    assert sketch.total == sum(truth.values())
    for key, hot in shown.items():
        assert hot.hits - hot.error <= truth[key] <= hot.hits
        assert hot.error <= sketch.total / capacity
    for key, many in truth.items():
        if many > sketch.total / capacity:
            assert key in shown
        if key not in shown:
            assert many <= sketch.floor


@given(st.lists(BATCHES, min_size=2, max_size=4))
def test_merged_sketches_bracket_the_truth_too(nodes: list[list[list[str]]]) -> None:
    truth = Counter[str]()
    sketches = []
    for batches in nodes:
        sketch = SpaceSaving(3)
        for batch in batches:
            sketch.add(Counter(batch))
            truth.update(batch)
        sketches.append((sketch.top(), sketch.floor))
    for hot in merged(sketches, 100):
        assert hot.hits - hot.error <= truth[hot.key] <= hot.hits


def test_a_flood_of_strangers_does_not_hide_a_heavy_key() -> None:
    sketch, rng = SpaceSaving(100), random.Random(7)
    for _ in range(200):
        batch = Counter(str(rng.random()) for _ in range(90))
        batch["heavy"] = 10
        sketch.add(batch)
    top = sketch.top(1)[0]
    assert top.key == "heavy"
    assert top.hits - top.error <= 2_000 <= top.hits


def test_recent_keys_forget_what_was_popular_two_periods_ago() -> None:
    keys = RecentKeys()
    keys.add({"old": 5})
    keys.turn()
    keys.add({"new": 1, "old": 1})
    assert keys.top(10) == [Hot("old", 6, 0), Hot("new", 1, 0)]
    keys.turn()
    assert keys.top(10) == [Hot("old", 1, 0), Hot("new", 1, 0)]
    keys.turn()
    assert keys.top(10) == []
