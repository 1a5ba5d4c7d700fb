"""Rules that change while a program runs: followed, kept as the last good copy, checked and edited."""
