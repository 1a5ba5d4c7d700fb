"""What it costs to find the rules for a request, and to take over new ones while deciding.

`worlds.py` makes rule sets and requests that meet in different ways, `scenarios.py` says what is measured and what is
promised.
"""
