"""The Redis protocol: `CL.THROTTLE` for every Redis client, `HG` for the remote engine and for other nodes.

reading       bytes to commands, bounded
replies       values to bytes
connection    one client: commands in turn, answers in order, patience
session       who the client is: HELLO, AUTH, CLIENT
commands      what can be asked, and who may
limits        CL.THROTTLE, HG.HIT, HG.PEEK, HG.RESET
node_engine   the node as an engine for packed calls: with its guards, and recorded
"""
