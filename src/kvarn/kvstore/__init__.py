"""KV blocks beyond the device: in the machine's memory, and in segment files on disk that outlive the process."""

from kvarn.kvstore.disk import DiskTier
from kvarn.kvstore.memory import MemoryTier
from kvarn.kvstore.record import BadBlockError, KVStoreError
from kvarn.kvstore.segment_tier import SegmentTier
from kvarn.kvstore.tiers import TieredStore

__all__ = ["BadBlockError", "DiskTier", "KVStoreError", "MemoryTier", "SegmentTier", "TieredStore"]
