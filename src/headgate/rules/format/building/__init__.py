"""From checked fields to a rule: each module builds one part of it.

    defaults     fields that a rule takes from the file's defaults
    limits       rate, limit, limits … → limits          match       → Match
    identifier   → Identifier                            networks    address ranges
    values       identifier values of overrides          locations   where a field was written
    rule         all of it → Rule

Types and bounds are checked before (`fields`). If the meaning of a value is wrong, an error is added to the
`ErrorCollector`; the function then returns `None`, or leaves the part out, and the rule is not used.
"""
