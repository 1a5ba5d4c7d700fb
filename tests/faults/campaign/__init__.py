"""The fault campaign: real stores, nodes and clients; faults; and the checker that judges what came of them.

node      `headgate serve` that measures itself: from bytes read to answer written client    a process that asks nodes
over HTTP, and writes down what it was told fleet     a store, three nodes and the links between them; etcd_fleet: the
same on etcd faults    what is broken, and how it is mended; node_faults: nodes and clocks; pressure: too many callers,
requests, keys
          (a crowd); pairs: two at once; etcd_faults; region_faults
catalogue all of them terms     what is asked of a run, and whether it was met run       one run: calm, fault, mend,
settle, liveness, ledger, verdict report    what was measured, as JSON and HTML
"""
