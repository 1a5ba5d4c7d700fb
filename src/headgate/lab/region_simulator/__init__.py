"""The simulator of regions: stores, nodes, links and clocks in virtual time, with faults; one seed gives one run.

world      events in the order of their time, and the network between regions: delays, loss, doubles, cuts
escrow     regions that hold rights and pass them on: stores that restart empty, nodes that die between two steps
merge      regions that tell each other what they admit: stores that restart empty
sometimes  rare situations that a campaign must have reached
run        one seed from beginning to verdict
campaign   many seeds
"""
