"""Groups of an engine's gauges and totals (`EngineStats`). Totals count since the engine's start."""

from __future__ import annotations

import msgspec

STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Bounds by which steps are counted: tokens of a step."""


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    running: list[str] = []  # names of adapters with which sequences run
    waiting: list[str] = []  # names of adapters for which all requests wait
    blocks: int = 0  # KV blocks that hold adapters
    loads_total: int = 0  # adapters brought into KV blocks
    evictions_total: int = 0  # adapters whose KV blocks were given to others


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    drafts_total: int = 0  # rows that verified proposals
    draft_tokens_total: int = 0  # proposals
    accepted_tokens_total: int = 0  # proposals that were drawn
    accepted_tokens_per_pos_total: list[int] = []  # the same by position in the row


class LookupStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prompts beyond the prefix cache: in tiers, and at a prefill engine."""

    queries_total: int = 0  # prompt tokens looked up in the tiers: those that the prefix cache did not hold
    hits_total: int = 0  # of those, tokens loaded from there
    given_up_total: int = 0  # fetches that took longer than computing the blocks
    remote_prefills_total: int = 0  # prompts that another engine was asked to compute


class SessionStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    known: int = 0  # sessions of which turns have come, as many as are kept in mind
    returns_total: int = 0  # turns that went on with a conversation
    resident_returns_total: int = 0  # of those, the ones whose last turn was whole in the prefix cache


class ExpertStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tokens_total: dict[str, int] = {}  # tokens given to the experts of each rank, summed over layers
    imbalance: float = 0.0  # tokens of a layer's busiest expert over the mean of its experts; 0: none


class WorkStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kv_tokens_read_total: int = 0
    """Cached tokens read by decode rows, those that several sequences share counted for each."""
    attended_pairs_total: int = 0  # (query, key) pairs attended
    read_bytes_total: int = 0  # weights and cached tokens that the steps had to read (`kvarn.costs`)
    operations_total: int = 0  # operations that the steps had to do; a multiply-add counts as two
