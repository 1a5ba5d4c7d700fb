"""The Redis engine: one atomic script per decision, on Redis and Valkey, standalone, Sentinel or Cluster.

`lua/` has the arithmetic, `codec.py` the wire format, `sync.py` and `aio.py` the two shells.
"""
