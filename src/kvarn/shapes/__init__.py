"""Sizes of models and of what they cache. Pure: no torch, and nothing of Kvarn is imported."""

from kvarn.shapes.cache import BLOCK_SIZE, KvDtype

__all__ = ["BLOCK_SIZE", "KvDtype"]
