"""The Redis protocol: `CL.THROTTLE` for every Redis client, `HG` for the remote engine and for other nodes.

reading       bytes to commands, bounded
replies       values to bytes
connection    one client: commands in turn, answers in order, timeouts
session       the client's identity: HELLO, AUTH, CLIENT
commands      the commands, and their roles
limits        CL.THROTTLE, HG.HIT, HG.PEEK, HG.RESET
node_engine   the node as an engine for packed calls: with its guards, and recorded
"""
