"""Guards: engines wrapped around an engine, each of which answers what it can without asking."""
