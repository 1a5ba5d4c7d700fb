"""What a rules document says: read, checked field by field, built into rules, and linted."""
