"""Where rules are kept: files, ZooKeeper, etcd. These do I/O and do not interpret rules.

base      what a source and a store promise      location  URLs                    opening  from a URL to a store
file      a file and its history: file_text changes single rules in it, file_watch notices changes
tree      one node a rule, and how many nodes change as one: on nodes and journal, which are pure
zookeeper, etcd                                  the shells on it, each with a client
"""
