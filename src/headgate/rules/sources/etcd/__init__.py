"""Rules in etcd: `client` talks to the servers, `store` knows how rules are stored there."""

from .store import EtcdStore

__all__ = ["EtcdStore"]
