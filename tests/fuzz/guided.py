"""One target under Atheris: `python -m tests.fuzz.guided TARGET [options of libFuzzer] [folders of inputs]`.

What is imported from here on is watched, so this comes before the target. One input in four is made by our own
mutations, which know the words of the formats and make inputs large; the others by libFuzzer's.
"""

from __future__ import annotations

import random
import sys
from typing import Final

import atheris

from . import cost
from .mutations import mutated
from .targets import TARGETS

SLOWER: Final = 20.0
"""Watched code takes so much longer at most."""


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    with atheris.instrument_imports(include=["headgate"]):
        callable(target.check)
    corpus = target.corpus()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.25:
            return mutated([data, *corpus], chance)[:max_size]
        return bytes(atheris.Mutate(data, max_size))

    atheris.Setup(
        sys.argv, lambda data: cost.run(target, data, slower=SLOWER), custom_mutator=mutate
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
