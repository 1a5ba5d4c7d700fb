"""Telemetry of a node: counts, metrics, logs and traces."""
