"""What one hostile caller can cost: CPU per byte of a body, memory per new key, limit, window, rule or head.

`hostile.py` makes the bodies, `cost.py` measures what reading them takes, `memory.py` what stays behind of a million
new names.
"""
