"""The simulator of regions: stores, nodes, links and clocks in virtual time, with faults; one seed gives one run.

world      events in order of time, and the network between regions: delays, loss, duplicates, cuts
escrow     regions that hold rights and pass them on: stores that restart empty, nodes that die between two steps
merge      regions that share counters: stores that restart empty
split      regions that have shares: stores that restart empty
sometimes  rare situations that a campaign must reach
run        one seed from start to verdict
campaign   many seeds
"""
