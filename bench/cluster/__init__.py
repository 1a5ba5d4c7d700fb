"""The etcd engine beside the memory engine and a compare-and-swap for each request: `python -m bench.cluster`."""
