"""The checks: each one pure, over one history, and no slower than sorting it.

safety       no more than the limit plus what the promise adds       sweep  the spans in which most was admitted
liveness     no denial while there was certainly room                slots  the same for concurrency slots
replay       every answer is the algorithm's own, in the order of its receipts
receipts     no version missing, none twice, no time that cannot be
ledger       what the store counted is what it gave
leases       chunks are not overspent, nor used after their time
policy       answers without the store: within the share, and only while it was away
requests     all or nothing; rules only move forward; costs that make sense
"""
