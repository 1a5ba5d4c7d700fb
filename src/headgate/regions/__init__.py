"""Regions: one limit around the world, decided in each region by itself."""

from .model import Regions

__all__ = ["Regions"]
