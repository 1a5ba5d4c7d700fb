"""Counts that outlive the program: a state file, saved now and then and when the limiter is closed.

Prints:

    first run: 2 left
    second run: 1 left
    third run: 0 left
"""

import tempfile
from pathlib import Path

from headgate import Limiter

with tempfile.TemporaryDirectory() as folder:  # In a real program: a folder that stays.
    url = f"memory://?state_file={Path(folder, 'limits.state')}"
    for run in ("first", "second", "third"):
        with Limiter(url) as limiter:
            print(f"{run} run: {limiter.hit('org:7', '3/day').remaining} left")
