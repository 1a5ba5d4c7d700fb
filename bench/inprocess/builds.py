"""The builds of Headgate that take part, side by side in one process: pure Python, and compiled if there is one.

Both are called `headgate`, so the second is imported while the first is out of sight. Each goes on with its own modules.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from filecmp import cmpfiles
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import headgate

if TYPE_CHECKING:
    from headgate import AsyncLimiter, Charge, Limiter

COMPILED = Path("build/compiled/site")
"""Where `make compiled` puts it."""


@dataclass(frozen=True)
class Build:
    """What a contender uses of one build."""

    name: str
    limiter: type[Limiter]
    async_limiter: type[AsyncLimiter]
    charge: type[Charge]

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
    return Build(name, package.Limiter, package.AsyncLimiter, package.Charge)


def _is_headgate(module: str) -> bool:
    return module.partition(".")[0] in {"headgate", "headgate__mypyc"}


def _is_current(folder: Path) -> bool:
    """Whether there is a build, and of the sources that are measured beside it."""
    ours = Path(str(headgate.__file__)).parent
    sources = [str(path.relative_to(ours)) for path in ours.rglob("*.py")]
    same, _, _ = cmpfiles(ours, folder / "headgate", sources, shallow=False)
    return len(same) == len(sources)


PURE = Build("pure", headgate.Limiter, headgate.AsyncLimiter, headgate.Charge)
BUILDS = [PURE]
if _is_current(COMPILED):
    BUILDS.append(load("compiled", COMPILED.resolve()))
