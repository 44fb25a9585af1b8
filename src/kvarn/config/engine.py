"""Settings of an engine: its scheduling, and the placement of experts on its ranks."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class EngineConfig(Section):
    """Scheduling of one replica: the step's budget, the queue's bounds, fairness."""

    max_num_seqs: int = Field(256, ge=1, le=4096)
    """Sequences that may run at once (request slots). Not set: fewer where recurrent states of so many do not fit."""

    token_budget: int = Field(2048, ge=1)
    """Tokens computed in one step at most, prefill and decode together."""

    tpot_target_ms: float = Field(200.0, gt=0)
    """Time per output token that running requests shall keep. The prefill share of a step is cut so that the
    step-time model, which starts from the machine's measured speed and learns online, predicts a step no longer than
    this. Milliseconds."""

    min_prefill_chunk: int = Field(16, ge=1)
    """Prefill tokens a step may always carry, even when the TPOT target is already missed: prompts never starve."""

    max_prefill_stretch: float = Field(2.0, ge=1)
    """Factor by which prompts may stretch a step when running requests miss the TPOT target even without them: a target
    out of reach protects no request, and must not delay the prompts."""

    prefix_cache: bool = True
    """Keep computed blocks in a radix tree and reuse them for prompts that begin with the same tokens."""

    max_waiting_requests: int = Field(2048, ge=1)
    """Requests that may wait. One more is refused at once (`queue_full`)."""

    max_waiting_tokens: int = Field(4_000_000, ge=1)
    """Prompt tokens that may wait in all. A request that would pass it is refused at once (`queue_full`)."""

    max_wait_s: float | None = Field(None, gt=0)
    """Seconds a request may wait for its first step before it is refused (`queue_timeout`). Default: as long as it
    takes."""

    priority_ageing_s: float = Field(30.0, gt=0)
    """Seconds of waiting that lift a request by one priority tier, so that no tier starves."""

    input_token_weight: float = Field(1.0, ge=0)
    """Cost of one computed prompt token in a tenant's virtual token counter."""

    output_token_weight: float = Field(2.0, ge=0)
    """Cost of one output token in a tenant's virtual token counter."""

    schedule_folder: str | None = Field(None, min_length=1)
    """Folder in which each engine writes its schedule: every request with its token ids, every step with its plan, its
    times and its tokens, from which the scheduler's decisions can be played again. It grows for as long as the engine
    runs: for finding faults only. Default: none is written."""


class ExpertsConfig(Section):
    """Placement of a mixture's experts on the ranks, with `expert_parallel`. See docs/guides/parallel.md."""

    load_file: str | None = Field(None, min_length=1)
    """File in which an engine keeps how many tokens each expert was given, by layer: written when it ends, read when it
    starts, to give processes equal shares. Default: none; experts are divided by their numbers."""

    num_redundant: int = Field(0, ge=0)
    """Places for experts beyond one for each, in each layer, over all processes. The hottest experts of `load_file` get
    them: several processes hold each, and share its tokens."""
