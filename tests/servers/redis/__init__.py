"""Redis and Valkey as tests need them: alone, watched by Sentinels, or as a Cluster.

The topologies are context managers; inside, a test can do to them what an operator or a failure
does, and `heal` makes them whole again, so that several tests can share one.
"""

from .cluster import Cluster, SlotMove, cluster
from .flavours import FLAVOURS, WITH_TLS, Flavour
from .sentinel import SentinelGroup, sentinel
from .server import RedisServer, Setting, standalone

__all__ = [
    "FLAVOURS",
    "WITH_TLS",
    "Cluster",
    "Flavour",
    "RedisServer",
    "SentinelGroup",
    "Setting",
    "SlotMove",
    "cluster",
    "sentinel",
    "standalone",
]
