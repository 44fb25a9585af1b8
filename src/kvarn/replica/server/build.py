"""From a spec to a service: load the model and build the engine around it. Brings torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvarn.config.model import ModelConfig
from kvarn.models import CausalEncoder, Decoder, Encoder
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.experts import read_expert_load
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.ranks.parts import layout_of, load_part
from kvarn.replica.server.ranks.processes import RankProcesses
from kvarn.replica.server.startup.decoder import build_decoder
from kvarn.replica.server.startup.phases import Phases, model_card
from kvarn.replica.server.startup.warm_up import compile_ahead
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.text.rerank_template import QWEN3
from kvarn.worker.encoder_runner import EncoderRunner


class KindMismatchError(Exception):
    """The configuration says another `kind` than the checkpoint's architecture."""


def build_service(spec: ReplicaSpec, report: ReportProgress) -> GenerateService | EmbedService:
    """Build what the spec describes; a factory of a `ReplicaSpec`. Raises an error that says what is wrong with the
    checkpoint or the configuration."""
    config, phases = spec.model_config, Phases(report)
    load_file = config.experts.load_file
    expert_load = {} if load_file is None else read_expert_load(Path(load_file).expanduser())
    ranks = RankProcesses(spec, expert_load) if layout_of(config).world_size > 1 else None
    try:
        with phases("load weights"):
            model = load_part(spec, 0, None if ranks is None else ranks.group, expert_load, report)
        _check_kind(model, spec)
        if isinstance(model, Decoder):
            return build_decoder(model, spec, phases, ranks, partial(_rebuild, model, spec))
        return _build_encoder(model, config, phases)
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


def _rebuild(model: Decoder, spec: ReplicaSpec, restore: Callable[[], None], report: ReportProgress) -> GenerateService:
    phases = Phases(report)
    with phases("load weights"):
        restore()
    return build_decoder(model, spec, phases, None, partial(_rebuild, model, spec))


def _check_kind(model: Decoder | Encoder | CausalEncoder, spec: ReplicaSpec) -> None:
    config = spec.model_config
    kind = "generate" if isinstance(model, Decoder) else _encoder_kind(model)
    if config.kind not in ("auto", kind):
        raise KindMismatchError(
            f"{config.name} is configured with kind {config.kind!r}, but its checkpoint is of kind {kind!r}: "
            "set `kind` to auto, or `path` to another checkpoint"
        )
    if kind != "generate" and (config.kv_tiers or config.disaggregation):
        raise KindMismatchError(
            f"{config.name} generates no text and has no KV cache: leave out its `kv_tiers` and `disaggregation`"
        )


def _encoder_kind(model: Encoder | CausalEncoder) -> str:
    return "embed" if model.head is None else "score"


def _build_encoder(model: Encoder | CausalEncoder, config: ModelConfig, phases: Phases) -> EmbedService:
    runner = EncoderRunner(model, config.engine.token_budget)
    with phases("warm up"):
        compile_ahead(runner.compile_ahead)
        runner.embed([[0]])
    length, kind = model.spec.max_context_length, _encoder_kind(model)
    size = model.spec.hidden_size if kind == "embed" else 0
    template = QWEN3 if kind == "score" and isinstance(model, CausalEncoder) else ""
    card = model_card(model, phases, kind=kind, max_context_length=length, embedding_size=size, pair_template=template)
    return EmbedService(runner, config.engine, card)
