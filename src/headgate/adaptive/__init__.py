"""Adaptive limiting: watch the traffic (`monitor`), choose the algorithm (`selector`), agree on it (`agreement`).

Nothing here decides a request. It selects the variant of the `Adaptive` limit that is sent to the engine; because all
candidates' states are kept current, a switch never resets a count.
"""

from .agreement import Agreement, Proposal
from .control import AdaptiveControl
from .guard import Choices
from .local import LocalAdaptive, LocalChooser
from .monitor import OVERALL, Monitor, TrafficCount, rates_of
from .selector import Choice, Thresholds, pin, select, unpin

__all__ = [
    "OVERALL",
    "AdaptiveControl",
    "Agreement",
    "Choice",
    "Choices",
    "LocalAdaptive",
    "LocalChooser",
    "Monitor",
    "Proposal",
    "Thresholds",
    "TrafficCount",
    "pin",
    "rates_of",
    "select",
    "unpin",
]
