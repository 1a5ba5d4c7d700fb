"""Counts on etcd: each shard of the keys is owned by one node, which decides in memory and commits to etcd.

From the bottom up: `transactions` (requests to etcd), `records` (members and owners), `assignment` (who should own
what), `state_cells` and `entries` (the stored form of states), `marks` and `shard` (states that track changes),
`journal` (which entries are needed), `commits` (who gets an answer when). None of these does I/O. `client` talks to the
servers, `node` maintains a node's membership, `aio` is the engine, and `sync` its blocking form.
"""
