"""How a service runs: worker processes, the listening socket, and a clean shutdown."""
