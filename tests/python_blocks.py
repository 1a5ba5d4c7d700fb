"""Python blocks that share nothing with the blocks before them, as for a reader who copies just one."""

from collections.abc import Callable, Iterable
from typing import Any

from sybil import Document, Example, Region
from sybil.parsers.myst import PythonCodeBlockParser


class AlonePythonBlockParser(PythonCodeBlockParser):
    """Runs each block in an empty namespace."""

    def __call__(self, document: Document) -> Iterable[Region]:
        """The Python blocks of a document."""
        for region in super().__call__(document):
            assert region.evaluator is not None
            region.evaluator = _alone(region.evaluator)
            yield region


def _alone(evaluate: Callable[[Example], Any]) -> Callable[[Example], Any]:
    def evaluate_alone(example: Example) -> Any:
        example.namespace.clear()
        return evaluate(example)

    return evaluate_alone
