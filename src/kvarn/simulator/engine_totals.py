"""Counts of engines, over all that a replica or a deployment has had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from kvarn.wire.messages import EngineStats


@dataclass(slots=True)
class EngineTotals:
    preemptions: int = 0
    verified: int = 0  # rows of steps that verified guesses
    proposed: int = 0  # guesses that were verified
    accepted: int = 0  # guesses that were drawn
    disk_written: int = 0  # bytes of blocks
    disk_read: int = 0

    def add(self, stats: EngineStats) -> None:
        """Count an engine that is over."""
        guesses = stats.speculation
        self.preemptions += stats.preemptions_total
        self.verified += guesses.drafts_total
        self.proposed += guesses.draft_tokens_total
        self.accepted += guesses.accepted_tokens_total
        if (disk := stats.kv_tiers.get("disk")) is not None:
            self.disk_written += disk.stored_bytes_total
            self.disk_read += disk.loaded_bytes_total

    @classmethod
    def sum(cls, parts: Iterable[EngineTotals]) -> EngineTotals:
        whole = cls()
        for part in parts:
            for each in fields(cls):
                setattr(whole, each.name, getattr(whole, each.name) + getattr(part, each.name))
        return whole
