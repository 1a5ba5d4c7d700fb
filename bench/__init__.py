"""Headgate beside other limiters, measured the same way in the same run.

`harness.py` is how anything is timed here; each folder is one question:

    python -m bench.inprocess     how fast is a hit inside one process, and what does a key weigh?
    python -m bench.guards        what do guards add to a hit, in memory and on Redis?
    python -m bench.rules         how fast does a request find its rules, and what does taking over new ones cost?
"""
