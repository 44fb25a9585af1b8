"""From a spec to a service: load the model, allocate its cache, run it once. Brings torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kvarn.config.schema import BLOCK_SIZE, ModelConfig
from kvarn.engine.plan import BlockUpdate, Executor, NewSequence, Row, StepPlan
from kvarn.engine.step_time import StepTimeModel
from kvarn.models import Decoder, Encoder, load_model
from kvarn.replica.server.cpu import kernel_threads, usable_cores
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.step_time_prior import expected_steps, product_speeds
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard
from kvarn.wire.sampling import SamplingParams
from kvarn.worker import EncoderRunner, InProcessExecutor, plan_kv_blocks


class KindMismatchError(Exception):
    """The configuration says another `kind` than the checkpoint's architecture."""


class _Phases:
    """Reports the phases of a start, and keeps the seconds each took."""

    def __init__(self, report: ReportProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        self._report(phase, 0.0)
        yield
        self.seconds[phase] = time.monotonic() - began


def build_service(spec: ReplicaSpec, report: ReportProgress) -> GenerateService | EmbedService:
    """Build what the spec describes; a factory of a `ReplicaSpec`.

    Raises:
        Exception: What loading raises; the message says what is wrong with the checkpoint or the configuration.
    """
    config = spec.model_config
    torch.set_num_threads(config.threads or usable_cores())  # for loading; see below for serving
    phases = _Phases(report)
    with phases("load weights"):
        model = load_model(
            Path(spec.directory),
            dtype=config.dtype,
            progress=report,
            max_context_length=config.max_context_length,
            quantization=config.quantization,
            kv_cache_dtype=config.kv_cache_dtype,
            kernels=config.kernels,
            packed_cache=None if config.packed_cache is None else Path(config.packed_cache).expanduser(),
        )
    held = model.layer_bytes if isinstance(model, Decoder) else model.spec.num_parameters * model.dtype.itemsize
    torch.set_num_threads(config.threads or kernel_threads(held))
    kind = "generate" if isinstance(model, Decoder) else "embed"
    if config.kind not in ("auto", kind):
        raise KindMismatchError(
            f"{config.name} is configured with kind {config.kind!r}, but its checkpoint is of kind {kind!r}: "
            "set `kind` to auto, or `path` to another checkpoint"
        )
    if isinstance(model, Decoder):
        return _build_decoder(model, config, phases)
    return _build_encoder(model, config, phases)


def _build_decoder(model: Decoder, config: ModelConfig, phases: _Phases) -> GenerateService:
    max_context_length = config.max_context_length or model.spec.max_context_length
    with phases("allocate the KV cache"):
        num_blocks = plan_kv_blocks(
            model.spec,
            model.kv_dtype,
            kv_cache_gib=config.kv_cache_gib,
            max_num_seqs=config.engine.max_num_seqs,
            max_context_length=max_context_length,
            weight_bytes=model.layer_bytes + model.head_bytes,
            memory_bytes=model.kernels.memory_bytes(),
        )
        executor = InProcessExecutor(
            model,
            num_blocks=num_blocks,
            max_num_seqs=config.engine.max_num_seqs,
            max_context_length=max_context_length,
        )
    with phases("warm up"):
        warm_up(executor)
    costs = model.costs
    with phases("time products"):
        speeds = product_speeds(model.input_products, model.kernels.activation_dtype(model.dtype), model.kernels.device)
        step_time = StepTimeModel(expected=expected_steps(costs, speeds))
    card = _card(
        model,
        phases,
        kind="generate",
        max_context_length=max_context_length,
        kv_blocks=num_blocks,
        kv_dtype=model.kv_dtype,
        block_size=BLOCK_SIZE,
        adapters=list(model.adapters),
    )
    return GenerateService(executor, config.engine, card, namespace=config.name, costs=costs, step_time=step_time)


def warm_up(executor: Executor) -> None:
    """Compute one block of prompt and one token on top, then forget them: the first request finds everything warm."""
    tokens = list(range(min(BLOCK_SIZE, executor.max_context_length - 1)))
    sequence = NewSequence(0, SamplingParams(seed=0, temperature=0.0, max_tokens=2), 0, tokens, [])
    prompt = Row(0, 0, tokens, [BlockUpdate(0, 0)], sample=True)
    second_block = [BlockUpdate(1, 1)] if len(tokens) == BLOCK_SIZE and executor.num_blocks > 1 else []
    decode = Row(0, len(tokens), [0], second_block, sample=True)
    plans = [StepPlan(0, [], [sequence], [], [prompt]), StepPlan(0, [0], [], [], [])]
    if second_block:
        plans.insert(1, StepPlan(0, [], [], [], [decode]))
    for plan in plans:
        executor.submit(plan)
        executor.collect()


def _build_encoder(model: Encoder, config: ModelConfig, phases: _Phases) -> EmbedService:
    runner = EncoderRunner(model, config.engine.token_budget)
    with phases("warm up"):
        runner.embed([[0]])
    length, size = model.spec.max_context_length, model.spec.hidden_size
    card = _card(model, phases, kind="embed", max_context_length=length, embedding_size=size)
    return EmbedService(runner, config.engine, card)


def _card(model: Decoder | Encoder, phases: _Phases, **fields: Any) -> ModelCard:
    return ModelCard(
        architecture=model.spec.architecture,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        kernels=model.kernels.name,
        vocab_size=model.spec.vocab_size,
        num_parameters=model.spec.num_parameters,
        load_s=phases.seconds["load weights"],
        start_s=phases.seconds,
        **fields,
    )
