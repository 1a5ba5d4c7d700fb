"""Rules in ZooKeeper: `client` configures kazoo, `store` knows how rules are stored there."""

from .store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
