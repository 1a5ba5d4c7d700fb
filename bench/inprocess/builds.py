"""The builds of Headgate that take part, side by side in one process: pure Python, and compiled if there is one.

Both are called `headgate`, so the second is imported while the first is out of sight. Each goes on with its own
modules.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import headgate

from ..compiled import COMPILED, is_current

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from headgate import AsyncLimiter, Charge, Limit, Limiter


@dataclass(frozen=True)
class Build:
    """What a contender uses of one build."""

    name: str
    limiter: type[Limiter]
    async_limiter: type[AsyncLimiter]
    charge: type[Charge]
    algorithms: Mapping[str, type[Limit]]

    def __call__(self, algorithm: str) -> str:
        """What an algorithm of this build is called in tables."""
        return algorithm if self is PURE else f"{algorithm} {self.name}"


def load(name: str, folder: Path) -> Build:
    """The build in `folder`, whatever else is called `headgate` in this process."""
    ours = {name: module for name, module in sys.modules.items() if _is_headgate(name)}
    for module in ours:
        del sys.modules[module]
    sys.path.insert(0, str(folder))
    try:
        package = import_module("headgate")
    finally:
        sys.path.remove(str(folder))
        for module in [one for one in sys.modules if _is_headgate(one)]:
            del sys.modules[module]
        sys.modules.update(ours)
    return _build(name, package)


def _build(name: str, package: ModuleType) -> Build:
    algorithms = package.algorithms.ALGORITHMS
    return Build(name, package.Limiter, package.AsyncLimiter, package.Charge, algorithms)


def _is_headgate(module: str) -> bool:
    return module.partition(".")[0] in {"headgate", "headgate__mypyc"}


PURE = _build("pure", headgate)
BUILDS = [PURE]
if is_current():
    BUILDS.append(load("compiled", COMPILED))
