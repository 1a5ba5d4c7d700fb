"""The short part of `make fuzz`: all that is kept, and a few thousand inputs that are the same in every run."""

from __future__ import annotations

import random
import zlib
from typing import Final

import pytest

from . import cost
from .mutations import MAX_BYTES, mutated
from .targets import HERE, TARGETS, Target

RUNS: Final = {
    "rates": 3_000,
    "rules": 250,
    "wire": 1_500,
    "batches": 400,
    "paths": 4_000,
    "http": 1_000,
    "resp": 3_000,
}
SEED: Final = 11


@pytest.mark.parametrize("name", TARGETS)
def test_everything_that_is_kept_holds(name: str) -> None:
    target = TARGETS[name]
    corpus = target.corpus()
    for data in corpus:
        cost.run(target, data)
    assert len(corpus) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_thousand_inputs_hold(name: str) -> None:
    """Chance needs many tries to find anything."""
    target = TARGETS[name]
    corpus, chance = target.corpus(), random.Random(SEED)
    sizes = set()
    for _ in range(RUNS.get(name, 1_000)):
        data = mutated(corpus, chance)
        cost.run(target, data)
        sizes.add(len(data))
    assert len(sizes) > 20  # They were not the same input all over.


def test_the_same_seed_makes_the_same_inputs() -> None:
    corpus = TARGETS["wire"].corpus()
    first, second = random.Random(SEED), random.Random(SEED)
    made = [mutated(corpus, first) for _ in range(300)]
    assert made == [mutated(corpus, second) for _ in range(300)]
    assert len({zlib.crc32(data) for data in made}) > 250
    assert max(map(len, made)) > MAX_BYTES // 2


def test_work_that_grows_faster_than_its_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratic = staticmethod(lambda data: [data.count(b"x") for _ in data[::8]])
    monkeypatch.setattr(Target, "check", quadratic)
    with pytest.raises(AssertionError, match="ms are allowed"):
        cost.run(Target("quadratic"), b"a" * MAX_BYTES)


def test_every_corpus_belongs_to_a_target() -> None:
    assert {folder.name for folder in (HERE / "corpus").iterdir()} == set(TARGETS)
