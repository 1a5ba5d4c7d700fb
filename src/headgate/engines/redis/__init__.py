"""The Redis engine: one atomic script per decision, on Redis and Valkey, standalone, Sentinel or Cluster.

`lua/` holds the arithmetic, `codec.py` what goes over the wire and back, `sync.py` and `aio.py` the two shells.
"""
