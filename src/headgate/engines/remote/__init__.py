"""The remote engine: `headgate://node:port`, a running node instead of a store.

It is the Redis engine, sync and async, connected to nodes: links, batches, deadlines and repairs are those of
`engines/redis`. `serving.py` is the node's side: it turns packed calls into calls of an engine.
"""
