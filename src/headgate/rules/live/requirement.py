"""A further condition on live rules, besides that they are valid: that this process can honour them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..model import RuleSet

Requirement: TypeAlias = Callable[[RuleSet], None]
"""Raises a `ConfigError` about rules that cannot be honoured; the rules before them then stay in use."""


def anything(rules: RuleSet) -> None:
    """Nothing is asked."""
