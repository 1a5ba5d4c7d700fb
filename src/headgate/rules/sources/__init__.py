"""Where rules are stored: files, ZooKeeper, etcd. These modules do I/O and do not interpret rules.

base      the contract of a source and a store    location  URLs                    opening  from a URL to a store
file      a file and its history: file_text changes single rules in it, file_watch notices changes
tree      one node per rule, and atomic changes of many nodes; uses nodes and journal, which are pure
zookeeper, etcd                                  the implementations, each with a client
"""
