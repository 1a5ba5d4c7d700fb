"""Rules: who is limited, and how much. Everything here but `sources` is pure.

model     what a rule is                    problem   what can be wrong with one, and where
request   what a call looks like to a rule
"""
