import random
from collections import Counter

from hypothesis import given, strategies as st

from headgate.board.sketch import RecentKeys, SpaceSaving, TopKey, merged

BATCHES = st.lists(st.lists(st.sampled_from("abcdefghijkl"), max_size=30), max_size=20)


@given(BATCHES, st.integers(1, 6))
def test_every_count_brackets_the_truth_and_the_error_is_bounded(
    batches: list[list[str]], capacity: int
) -> None:
    sketch, truth = SpaceSaving(capacity), Counter[str]()
    for batch in batches:
        sketch.add(batch)
        truth.update(batch)
    shown = {hot.key: hot for hot in sketch.top(100)}
    assert sketch.total == sum(truth.values())
    for key, hot in shown.items():
        assert hot.hits - hot.error <= truth[key] <= hot.hits
    assert sketch.floor <= sketch.total / (capacity + 1)
    for key, many in truth.items():
        if key not in shown:
            assert many <= sketch.floor


@given(st.lists(BATCHES, min_size=2, max_size=4))
def test_merged_sketches_bracket_the_truth_too(nodes: list[list[list[str]]]) -> None:
    truth = Counter[str]()
    sketches = []
    for batches in nodes:
        sketch = SpaceSaving(3)
        for batch in batches:
            sketch.add(batch)
            truth.update(batch)
        sketches.append((sketch.top(100), sketch.floor))
    for hot in merged(sketches, 100):
        assert hot.hits - hot.error <= truth[hot.key] <= hot.hits


def test_a_flood_of_new_keys_does_not_hide_a_heavy_key() -> None:
    sketch, rng = SpaceSaving(100), random.Random(7)
    for _ in range(200):
        sketch.add([str(rng.random()) for _ in range(90)] + ["heavy"] * 10)
    assert len(sketch.top(10_000)) < 300
    top = sketch.top(1)[0]
    assert top.key == "heavy"
    assert top.hits - top.error <= 2_000 <= top.hits


def test_recent_keys_forget_what_was_popular_two_periods_ago() -> None:
    keys = RecentKeys()
    keys.add(["old"] * 5)
    keys.rotate()
    keys.add(["new", "old"])
    assert keys.top(10) == [TopKey("old", 6, 0), TopKey("new", 1, 0)]
    keys.rotate()
    assert keys.top(10) == [TopKey("old", 1, 0), TopKey("new", 1, 0)]
    keys.rotate()
    assert keys.top(10) == []
