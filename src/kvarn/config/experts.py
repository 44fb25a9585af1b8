"""Settings of mixtures of experts."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class ExpertsConfig(Section):
    """Placement of a mixture's experts on the ranks, with `expert_parallel`. See docs/parallel.md."""

    load_file: str | None = Field(None, min_length=1)
    """File in which an engine keeps how many tokens each expert was given, by layer: written when it ends, read when it
    starts, to give processes equal shares. Default: none; experts are divided by their numbers."""

    num_redundant: int = Field(0, ge=0)
    """Places for experts beyond one for each, in each layer, over all processes. The hottest experts of `load_file` get
    them: several processes hold each, and share its tokens."""
