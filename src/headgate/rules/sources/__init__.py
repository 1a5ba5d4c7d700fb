"""Where rules are kept: files, ZooKeeper, etcd. These do I/O; what rules mean is not known here.

base      what a source and a store promise      location  URLs
file      a file that is watched                 journal   how changes are written down, pure
tree      one node a rule, and how several nodes change as one; zookeeper and etcd are shells on it
"""
