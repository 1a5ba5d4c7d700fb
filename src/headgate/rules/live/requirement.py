"""What live rules need besides being valid: this process must be able to apply them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..model import RuleSet

Requirement: TypeAlias = Callable[[RuleSet], None]
"""Raises a `ConfigError` about rules that cannot be applied; the previous rules then stay in use."""


def anything(rules: RuleSet) -> None:
    """Accept any valid rules."""
