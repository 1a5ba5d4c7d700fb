"""Rules in ZooKeeper: `client` sets kazoo up, `store` knows what rules look like there."""

from .store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
