"""How fast is a hit inside one process, and what does a key weigh?

`contenders.py` wraps every limiter as thinly as it goes, `scenarios.py` says what they are asked,
`targets.py` what Headgate promises, `memory.py` weighs keys, and `plot.py` draws.
"""
