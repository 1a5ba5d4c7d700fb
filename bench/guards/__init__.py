"""What guards cost: a hit of the memory engine behind those of the service, and one of Redis behind a fallback."""
