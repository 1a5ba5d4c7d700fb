"""Counts on etcd: each shard of the keys is owned by one node, which decides in memory and commits to etcd.

From the bottom up: `transactions` (what etcd is asked), `records` (who is there and who owns what), `assignment` (who
should), `state_cells` and `entries` (what is written of states), `marks` and `shard` (states that know what has
changed), `journal` (which entries are needed), `commits` (who is told when). None of these does I/O. `client` speaks to
the servers, `node` keeps a node's place in the cluster, `aio` is the engine, and `sync` the same for threads.
"""
