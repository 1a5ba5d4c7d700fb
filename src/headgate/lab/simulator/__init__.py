"""The simulator: nodes, a store, a network and clocks in virtual time, with faults; one seed gives one history.

loop       an event loop whose time jumps to the next event, and processes that pause and die
clocks     the clocks of processes, which may be fast or wrong, and the store's, which may step
store      decides with the memory engine and keeps a log, so it can lose what was not replicated
link       the connection from a node to the store: delays, cuts, resets, lost replies
engine     the store as a node's guards see it
node       a process with real guards around that engine
clients    what is requested, and what is recorded
nemesis    which faults happen, and when
sometimes  rare situations that a campaign must reach
run        one seed from start to verdict
"""
