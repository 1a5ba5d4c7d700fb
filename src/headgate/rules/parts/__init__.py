"""From checked fields to a rule: each module here reads one part of it.

    filling      what a rule does not say, taken from the file's defaults
    amount       rate, limit, limits … → limits          match       → Match
    identifier   → Identifier                            networks    ranges of addresses
    rule         all of it → Rule

Shapes were checked before (`fields.py`); what is found here is about meaning, and is noted in `Faults` like the rest. A
function that noted a fault returns `None`, or leaves the part out: the rule is not used then.
"""
