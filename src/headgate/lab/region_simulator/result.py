"""The result of one seed of regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from .sometimes import RegionSometimes


@dataclass(slots=True)
class RegionRun:
    """The result of one seed."""

    mode: str
    seed: int
    hits: int
    virtual_us: int
    reached: Counter[RegionSometimes]
    faults: Counter[str]
    findings: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not self.findings
