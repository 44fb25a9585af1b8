"""Service of an encoder."""

from __future__ import annotations

from kvarn.config.schema import ModelConfig
from kvarn.models import CausalEncoder, Encoder
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.startup.phases import Phases, model_card
from kvarn.replica.server.startup.warm_up import compile_ahead
from kvarn.text.rerank_template import QWEN3
from kvarn.worker.encoder_runner import EncoderRunner


def kind_of_encoder(model: Encoder | CausalEncoder) -> str:
    """Kind of service: vectors of texts, or scores of pairs."""
    return "embed" if model.head is None else "score"


def build_encoder(model: Encoder | CausalEncoder, config: ModelConfig, phases: Phases) -> EmbedService:
    runner = EncoderRunner(model, config.engine.token_budget)
    with phases("warm up"):
        compile_ahead(runner.compile_ahead)
        runner.embed([[0]])
    length, kind = model.spec.max_context_length, kind_of_encoder(model)
    size = model.spec.hidden_size if kind == "embed" else 0
    template = QWEN3 if kind == "score" and isinstance(model, CausalEncoder) else ""
    card = model_card(model, phases, kind=kind, max_context_length=length, embedding_size=size, pair_template=template)
    return EmbedService(runner, config.engine, card)
