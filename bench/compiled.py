"""The compiled build of `make compiled`; measured only if it was made of the sources beside it."""

from __future__ import annotations

from filecmp import cmpfiles
from pathlib import Path

import headgate

ROOT = Path(__file__).parent.parent
COMPILED = ROOT / "build" / "compiled" / "site"


def is_current() -> bool:
    """Whether there is a build, and of these sources."""
    ours = Path(str(headgate.__file__)).parent
    sources = [str(path.relative_to(ours)) for path in ours.rglob("*.py")]
    same, _, _ = cmpfiles(ours, COMPILED / "headgate", sources, shallow=False)
    return len(same) == len(sources)
