"""What a limit that regions merge costs a node: its own decisions beside those of a node without regions."""
