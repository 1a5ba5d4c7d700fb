"""The Redis protocol side by side with Redis itself: `redis-benchmark` against a node and against scripts."""
