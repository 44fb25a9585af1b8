"""Choice of the proposer. Brings torch."""

from __future__ import annotations

import logging
from pathlib import Path

from kvarn.config.schema import ModelConfig
from kvarn.engine.proposals.proposer import Proposer
from kvarn.models import Decoder
from kvarn.models.eagle import load_eagle_head
from kvarn.replica.server.startup.draft import load_draft
from kvarn.replica.server.startup.phases import Phases
from kvarn.replica.spec import ReplicaSpec
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.proposers.ngram import NgramProposer

log = logging.getLogger(__name__)


def build_proposer(
    spec: ReplicaSpec, config: ModelConfig, model: Decoder, num_blocks: int, phases: Phases
) -> Proposer | None:
    """Make the proposer that is configured, loading its draft model or head; None for none. Raises as `load_draft`."""
    if config.speculation.chosen == "none":
        return None
    if model.spec.has_states:
        log.info("no speculation: the model has recurrent states", extra={"model": config.name})
        return None
    if config.speculation.chosen == "ngram":
        return NgramProposer(config.speculation)
    with phases("load the draft model"):
        directory = Path(spec.draft_directory)
        if config.speculation.chosen == "eagle3":
            head = load_eagle_head(directory, model, Path(spec.directory))
            return EagleProposer(head, num_blocks=num_blocks, max_num_seqs=config.engine.max_num_seqs)
        return load_draft(directory, Path(spec.directory), config, model, num_blocks)
