"""What a decision costs when the state is in Redis, and what a key weighs there.

`contenders.py` wraps every limiter as thinly as it goes, `ceiling.py` says how fast the server itself
could be, `scenarios.py` what they are asked, `targets.py` what Headgate promises, `memory.py` weighs keys,
and `plot.py` draws. The server runs on one core and this process on another (`cores.py`).
"""
