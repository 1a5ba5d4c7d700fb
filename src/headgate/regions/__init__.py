"""Regions: one limit around the world, decided locally in each region."""

from .model import Regions

__all__ = ["Regions"]
