"""A node that follows rules in a process of its own, and writes down everything it sees.

    python rule_follower.py URL STATE_DIR LOG

Every line of the log is one set that was in use: when it came, its version, the limit of every rule, and the alarm.
"""

import json
import sys
import threading
import time
from pathlib import Path

from headgate.rules.live.following import LiveRules
from headgate.rules.live.opening import open_rules


def main(url: str, state_dir: str, log: str) -> None:
    live = open_rules(url, state_dir=state_dir)
    assert isinstance(live, LiveRules)
    with Path(log).open("a", buffering=1) as lines:

        def note(now: LiveRules) -> None:
            rules = now.current.rules
            print(
                json.dumps(
                    {
                        "at": time.monotonic(),
                        "version": now.version,
                        "limits": {rule.rule_id: rule.limits[0].limit for rule in rules},
                        "alarm": now.alarm,
                    }
                ),
                file=lines,
            )

        live.subscribe(note)
        note(live)
        live.refresh()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
