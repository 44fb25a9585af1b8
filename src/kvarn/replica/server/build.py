"""From a spec to a service: load the model, allocate its cache, run it once. Brings torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.schema import BLOCK_SIZE, ModelConfig
from kvarn.engine.core import EngineCore
from kvarn.engine.plan import BlockUpdate, Executor, NewSequence, Row, StepPlan
from kvarn.engine.proposer import Proposer
from kvarn.engine.step_time import StepTimeModel
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.masks import GrammarMasks
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.kernels.memory import GIB
from kvarn.models import CausalEncoder, Decoder, Encoder, load_model
from kvarn.models.adapters import load_adapter
from kvarn.models.eagle import load_eagle_head
from kvarn.replica.server.adapters import AdapterHost
from kvarn.replica.server.cpu import kernel_threads, usable_cores
from kvarn.replica.server.draft import load_draft
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.kv_tiers import build_tiers
from kvarn.replica.server.prefill_client import PrefillClient
from kvarn.replica.server.prefill_server import PrefillServer
from kvarn.replica.server.step_time_prior import expected_steps, product_speeds
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.text.checkpoint import resolve_tokenizer
from kvarn.text.errors import CheckpointError
from kvarn.wire.messages import AdapterInfo, ModelCard
from kvarn.wire.sampling import SamplingParams
from kvarn.worker import (
    DraftProposer,
    EagleProposer,
    EncoderRunner,
    InProcessExecutor,
    NgramProposer,
    plan_kv_blocks,
)

log = logging.getLogger(__name__)


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
            kind=config.kind,
        )
    held = model.layer_bytes if isinstance(model, Decoder) else model.spec.num_parameters * model.dtype.itemsize
    torch.set_num_threads(config.threads or kernel_threads(held))
    kind = "generate" if isinstance(model, Decoder) else "embed"
    if config.kind not in ("auto", kind):
        raise KindMismatchError(
            f"{config.name} is configured with kind {config.kind!r}, but its checkpoint is of kind {kind!r}: "
            "set `kind` to auto, or `path` to another checkpoint"
        )
    if kind == "embed" and (config.kv_tiers or config.disaggregation):
        raise KindMismatchError(
            f"{config.name} embeds texts and has no KV cache: leave out its `kv_tiers` and `disaggregation`"
        )
    if isinstance(model, Decoder):
        with phases("read the vocabulary"):
            masks = _grammar_masks(spec, model.spec.vocab_size)
        return _build_decoder(model, spec, config, phases, masks)
    return _build_encoder(model, config, phases)


def _grammar_masks(spec: ReplicaSpec, vocab_size: int) -> GrammarMasks:
    """What keeps answers to grammars. A checkpoint with which that cannot be done serves everything else."""
    config, checkpoint = spec.model_config, Path(spec.directory)
    try:
        directory = resolve_tokenizer(config.tokenizer) if config.tokenizer else checkpoint
        vocabulary = Vocabulary.load(directory, checkpoint, config.generation_config, vocab_size)
    except CheckpointError as error:  # the gateway, which reads the same files, tells of it
        return GrammarMasks(str(error))
    except (GrammarError, OSError) as error:
        log.warning("no grammars for this model", extra={"model": config.name, "reason": str(error)})
        return GrammarMasks(str(error))
    return GrammarMasks(vocabulary, max(1, usable_cores() // 2))


def _build_decoder(
    model: Decoder, spec: ReplicaSpec, config: ModelConfig, phases: _Phases, masks: GrammarMasks
) -> GenerateService:
    max_context_length = config.max_context_length or model.spec.max_context_length
    tiers = None
    if config.kv_tiers is not None or spec.role != "both":
        with phases("open the KV tiers"):
            chosen = config.kv_tiers or KVTiersConfig()
            shared = spec.role != "both"
            tiers = build_tiers(model, chosen, config.name, Path(spec.directory), shared=shared)
    connector = None if tiers is None else tiers.store
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
    proposer = build_proposer(spec, config, model, num_blocks, phases)
    executor = InProcessExecutor(
        model,
        num_blocks=num_blocks,
        max_num_seqs=config.engine.max_num_seqs,
        max_context_length=max_context_length,
        connector=connector,
        eagle=proposer if isinstance(proposer, EagleProposer) else None,
    )
    with phases("warm up"):
        warm_up(executor)
        if isinstance(proposer, DraftProposer | EagleProposer):
            proposer.warm_up()
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
    )
    peer = None if tiers is None else (tiers.store, spec.prefill_socket, tiers.digest, tiers.block_bytes)
    return GenerateService(
        executor,
        config.engine,
        card,
        namespace=config.name if tiers is None else tiers.namespace,
        costs=costs,
        step_time=step_time,
        proposer=proposer,
        speculation=config.speculation,
        adapters=executor.adapters,
        host=lambda engine: _host_adapters(model, executor, engine, config, phases),
        connector=connector,
        prefill_client=PrefillClient(*peer) if peer is not None and spec.role == "decode" else None,
        prefill_server=PrefillServer(*peer, spec.endpoint.directory)
        if peer is not None and spec.role == "prefill"
        else None,
        disaggregation=config.disaggregation,
        masks=masks,
    )


def _host_adapters(
    model: Decoder, executor: InProcessExecutor, engine: EngineCore, config: ModelConfig, phases: _Phases
) -> AdapterHost:
    limit = config.lora.host_memory_gib
    host = AdapterHost(
        partial(load_adapter, model=model, max_rank=config.lora.max_rank),
        executor.adapters,
        engine,
        num_blocks=executor.num_blocks,
        max_bytes=model.kernels.memory_bytes() // 10 if limit is None else int(limit * GIB),
        config=config.lora,
    )
    if config.adapters:
        with phases("load adapters"):
            host.load_now(
                AdapterInfo(
                    name=each.name,
                    path=each.path,
                    organizations=None if each.organizations is None else list(each.organizations),
                    projects=None if each.projects is None else list(each.projects),
                )
                for each in config.adapters
            )
    return host


def build_proposer(
    spec: ReplicaSpec, config: ModelConfig, model: Decoder, num_blocks: int, phases: _Phases
) -> Proposer | None:
    """What guesses tokens, as configured; a draft model is loaded. Raises as `load_draft`."""
    if config.speculation.chosen == "none":
        return None
    if config.speculation.chosen == "ngram":
        return NgramProposer(config.speculation)
    with phases("load the draft model"):
        directory = Path(spec.draft_directory)
        if config.speculation.chosen == "eagle3":
            head = load_eagle_head(directory, model)
            return EagleProposer(head, num_blocks=num_blocks, max_num_seqs=config.engine.max_num_seqs)
        return load_draft(directory, Path(spec.directory), config, model, num_blocks)


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


def _build_encoder(model: Encoder | CausalEncoder, config: ModelConfig, phases: _Phases) -> EmbedService:
    runner = EncoderRunner(model, config.engine.token_budget)
    with phases("warm up"):
        runner.embed([[0]])
    length, size = model.spec.max_context_length, model.spec.hidden_size
    card = _card(model, phases, kind="embed", max_context_length=length, embedding_size=size)
    return EmbedService(runner, config.engine, card)


def _card(model: Decoder | Encoder | CausalEncoder, phases: _Phases, **fields: Any) -> ModelCard:
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
