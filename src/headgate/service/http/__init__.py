"""HTTP: the wire format of requests and answers. The front makes the decisions."""
