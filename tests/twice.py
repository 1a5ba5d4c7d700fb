"""Run pytest; the few tests that fail run once more, alone: `python -m tests.twice [arguments of pytest]`.

Tests of deadlines and of failovers can fail because of what runs beside them on a machine with two cores. A test that
also fails alone fails the run. So do more than `FEW` failures, which are no coincidence, and a run that did not end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FEW = 10
SOME_FAILED = 1
"""The exit code of pytest when it has run everything, and not all of it passed."""
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    """The exit code of the run."""
    FAILED.unlink(missing_ok=True)  # What failed in another run says nothing about this one.
    pytest = [sys.executable, "-m", "pytest"]
    code = subprocess.run([*pytest, *arguments], check=False).returncode
    if code != SOME_FAILED or not FAILED.exists():
        return code
    failed: list[str] = list(json.loads(FAILED.read_text()))
    if len(failed) > FEW:
        return code
    print(f"\nOnce more, alone: {', '.join(failed)}", flush=True)  # noqa: T201 - for who reads the log
    return subprocess.run([*pytest, "--last-failed"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
