"""Which rules a request meets, and what each charges it. Pure."""
