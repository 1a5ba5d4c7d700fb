"""The fault campaign: real stores, nodes and clients; faults; and the checker that judges what came of them.

node      `headgate serve` that measures itself: from bytes read to answer written
client    a process that asks nodes over HTTP, and writes down what it was told
fleet     a store, three nodes and the links between them; etcd_fleet: the same on etcd
faults    what is broken, and how it is mended; pressure: too many callers, requests, keys (a crowd); etcd_faults;
          region_faults
catalogue all of them
run       one run: calm, fault, mend, settle, liveness, ledger, verdict
report    what was measured, as JSON and HTML
"""
