"""Servers to be compared with: ordinary builds of the same design, written as their documentation suggests."""
