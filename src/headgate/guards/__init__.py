"""Guards: pure code that answers what it can without calling the engine.

`base.py` has the contract, `shell.py` wraps an engine with a guard, blocking or async, and `stack.py` says which guards
an engine gets.
"""
