"""Choice of the proposer. Brings torch."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from kvarn.config.model import ModelConfig
from kvarn.costs.cache_plan import plan_cache
from kvarn.engine.proposals.proposer import Proposer
from kvarn.kernels.device.memory import GIB
from kvarn.models import Decoder, load_model
from kvarn.models.eagle import load_eagle_head
from kvarn.replica.server.startup.phases import Phases
from kvarn.replica.spec import ReplicaSpec
from kvarn.shapes import BLOCK_SIZE
from kvarn.worker.proposers.draft import DraftProposer
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.proposers.ngram import NgramProposer

_SHARE = 50
"""Default limit of the cache: one part in this many of the machine's memory."""
log = logging.getLogger(__name__)


class DraftModelError(Exception):
    """The configured draft model cannot guess this model's tokens."""


def build_proposer(
    spec: ReplicaSpec, config: ModelConfig, model: Decoder, num_blocks: int, phases: Phases
) -> Proposer | None:
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


def load_draft(directory: Path, target: Path, config: ModelConfig, model: Decoder, num_blocks: int) -> DraftProposer:
    """The draft model of the checkpoint `directory`, with a KV cache of its own; kernels and the types of weights and
    cache are those configured for the model. Raises `DraftModelError` where it is no decoder, or its tokens are others.
    """
    check_vocabulary(directory, target)
    draft = load_model(
        directory,
        device=config.device,
        dtype=config.dtype,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        kernels=config.kernels,
    )
    if not isinstance(draft, Decoder):
        raise DraftModelError(
            f"the draft model {directory} generates no text: choose a smaller model of the same family"
        )
    if draft.spec.has_states:
        raise DraftModelError(
            f"the draft model {directory} has recurrent states, which cannot go back behind a guess that was wrong: "
            "choose one without, or the method ngram"
        )
    memory = draft.kernels.device.memory_bytes()
    block_gib = draft.spec.kv_bytes_per_token(draft.kv_dtype) * BLOCK_SIZE / GIB
    length = min(draft.spec.max_context_length, config.max_context_length or model.spec.max_context_length)
    one_context = -(-length // BLOCK_SIZE) * block_gib
    default = max(min(num_blocks * block_gib, memory / GIB / _SHARE), one_context)
    plan = plan_cache(
        draft.spec,
        draft.kv_dtype,
        kv_cache_gib=config.speculation.draft_cache_gib or default,
        max_num_seqs=config.engine.max_num_seqs,
        max_context_length=length,
        weight_bytes=model.layer_bytes + model.head_bytes + draft.layer_bytes + draft.head_bytes,
        memory_bytes=memory,
    )
    return DraftProposer(draft, num_blocks=plan.num_blocks, vocab_size=model.spec.vocab_size)


def check_vocabulary(draft: Path, target: Path) -> None:
    """Raise DraftModelError unless the same token ids stand for the same tokens in both checkpoints."""
    own, wanted = _vocabulary(draft), _vocabulary(target)
    if own == wanted:
        return
    different = sum(1 for token, number in wanted.items() if own.get(token) != number)
    raise DraftModelError(
        f"the draft model {draft} has another tokenizer than {target}: {different or len(own) - len(wanted)} of "
        f"{len(wanted)} tokens differ. Choose a draft model of the same family, or the method ngram."
    )


def _vocabulary(directory: Path) -> dict[str, int]:
    path = directory / "tokenizer.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        listed = found["model"]["vocab"]
        tokens = listed if isinstance(listed, dict) else {token: number for number, (token, _) in enumerate(listed)}
        return {**tokens, **{added["content"]: added["id"] for added in found.get("added_tokens", [])}}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DraftModelError(
            f"the tokenizer {path} cannot be compared with that of the other model: {error}. Both checkpoints need a "
            "tokenizer.json."
        ) from error
