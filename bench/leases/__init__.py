"""What leases gain on Redis: `python -m bench.leases`."""
