"""The format of rules documents: read, checked field by field, built into rules, and linted."""
