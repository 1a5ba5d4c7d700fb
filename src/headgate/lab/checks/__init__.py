"""The checks: each one is pure, works on one history, and is no slower than sorting it.

safety       no more than the limit plus what the promise adds       sweep  the spans with most admissions
liveness     no denial while there was certainly room                slots  the same for concurrency slots
replay       every answer is the algorithm's, in the order of the receipts
receipts     no version missing or repeated, no impossible time
ledger       the store's count matches what was admitted
leases       chunks are not overspent, nor used after their deadline
policy       answers without the store: within the share, and only while it was down
requests     all or nothing; rule revisions only increase; costs are plausible
"""
