"""Rules in etcd: `client` speaks to the servers, `store` knows what rules look like there."""

from .store import EtcdStore

__all__ = ["EtcdStore"]
