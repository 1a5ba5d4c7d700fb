"""What a limit adds to a request in a web framework, in microseconds."""
