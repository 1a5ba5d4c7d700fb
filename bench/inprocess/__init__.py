"""What a hit costs inside one process, and what a key weighs.

`builds.py` brings in the compiled build beside the pure one, `contenders.py` wraps every limiter as thinly as it goes,
`scenarios.py` says what they are asked, `targets.py` what Headgate promises, `memory.py` weighs keys, and `plot.py`
draws.
"""
