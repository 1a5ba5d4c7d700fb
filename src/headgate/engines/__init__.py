"""Where states live. `base.py` is the contract, and `memory.py` the engine that needs no server."""
