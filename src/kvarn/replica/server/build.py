"""From a spec to a service: load the model, allocate its cache, run it once. Brings torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.schema import ModelConfig
from kvarn.costs.decoder import DecoderCosts, loaded_costs
from kvarn.engine.core import EngineCore
from kvarn.engine.plan import Executor
from kvarn.engine.proposer import Proposer
from kvarn.engine.step_time import StepTimeModel
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.masks import GrammarMasks
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.kernels.graphs import recorder_for
from kvarn.kernels.memory import GIB
from kvarn.models import CausalEncoder, Decoder, Encoder
from kvarn.models.adapters import load_adapter
from kvarn.models.eagle import load_eagle_head
from kvarn.replica.server.adapters import AdapterHost, LoadFunction
from kvarn.replica.server.cpu import usable_cores
from kvarn.replica.server.draft import load_draft
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.experts import ExpertLoads, read_expert_load
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.kv_tiers import BuiltTiers, build_tiers
from kvarn.replica.server.planned_context import with_planned_context
from kvarn.replica.server.prefill_client import PrefillClient
from kvarn.replica.server.prefill_server import PrefillServer
from kvarn.replica.server.ranks import (
    Begin,
    KeptBlocks,
    Loaded,
    RankProcesses,
    context_of,
    executor_type,
    keeps_blocks,
    layout_of,
    load_part,
)
from kvarn.replica.server.recurrent import check_recurrent, with_planned_states
from kvarn.replica.server.sleep import SleepingModel
from kvarn.replica.server.step_time_prior import expected_steps, product_speeds
from kvarn.replica.server.warm_up import compile_ahead, warm_up
from kvarn.replica.spec import ReplicaSpec, ReportProgress, configured_adapters
from kvarn.shapes import BLOCK_SIZE
from kvarn.text.checkpoint import resolve_tokenizer
from kvarn.text.errors import TextError
from kvarn.text.rerank_template import QWEN3
from kvarn.wire.messages import ModelCard
from kvarn.worker import (
    DraftProposer,
    EagleProposer,
    EncoderRunner,
    GpuBudget,
    InProcessExecutor,
    NgramProposer,
    plan_cache,
    step_bytes,
)
from kvarn.worker.collectives import RankLayout
from kvarn.worker.kv_blocks import block_bytes
from kvarn.worker.memory import CachePlan
from kvarn.worker.rank_blocks import BlockPart, RankBlocks, block_parts, slot_bytes
from kvarn.worker.ranks import RanksExecutor

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
    config, layout = spec.model_config, layout_of(spec.model_config)
    phases = _Phases(report)
    load_file = config.experts.load_file
    expert_load = {} if load_file is None else read_expert_load(Path(load_file).expanduser())
    ranks = None
    if layout.world_size > 1:
        ranks = RankProcesses(spec, expert_load)
    try:
        with phases("load weights"):
            model = load_part(spec, 0, None if ranks is None else ranks.group, expert_load, report)
        return _build(model, spec, config, phases, ranks)
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


def _rebuild(model: Decoder, spec: ReplicaSpec, restore: Callable[[], None], report: ReportProgress) -> GenerateService:
    """The service of a model that slept."""
    config, phases = spec.model_config, _Phases(report)
    with phases("load weights"):
        restore()
    service = _build(model, spec, config, phases, None)
    assert isinstance(service, GenerateService), "a decoder generates"
    return service


def _build(
    model: Decoder | Encoder | CausalEncoder,
    spec: ReplicaSpec,
    config: ModelConfig,
    phases: _Phases,
    ranks: RankProcesses | None,
) -> GenerateService | EmbedService:
    kind = "generate" if isinstance(model, Decoder) else _kind_of_encoder(model)
    if config.kind not in ("auto", kind):
        raise KindMismatchError(
            f"{config.name} is configured with kind {config.kind!r}, but its checkpoint is of kind {kind!r}: "
            "set `kind` to auto, or `path` to another checkpoint"
        )
    if kind != "generate" and (config.kv_tiers or config.disaggregation):
        raise KindMismatchError(
            f"{config.name} generates no text and has no KV cache: leave out its `kv_tiers` and `disaggregation`"
        )
    if isinstance(model, Decoder):
        with phases("read the vocabulary"):
            masks = _grammar_masks(spec, model.spec.vocab_size)
        return _build_decoder(model, spec, config, phases, masks, ranks)
    return _build_encoder(model, config, phases)


def _grammar_masks(spec: ReplicaSpec, vocab_size: int) -> GrammarMasks:
    """What keeps answers to grammars. A checkpoint with which that cannot be done serves everything else."""
    config, checkpoint = spec.model_config, Path(spec.directory)
    try:
        directory = resolve_tokenizer(config.tokenizer) if config.tokenizer else checkpoint
        vocabulary = Vocabulary.load(directory, checkpoint, config.generation_config, vocab_size)
    except TextError as error:  # the gateway, which reads the same files, tells of it
        return GrammarMasks(str(error))
    except (GrammarError, OSError) as error:
        log.warning("no grammars for this model", extra={"model": config.name, "reason": str(error)})
        return GrammarMasks(str(error))
    return GrammarMasks(vocabulary, max(1, usable_cores() // 2))


def _build_decoder(
    model: Decoder,
    spec: ReplicaSpec,
    config: ModelConfig,
    phases: _Phases,
    masks: GrammarMasks,
    ranks: RankProcesses | None,
) -> GenerateService:
    check_recurrent(model, config)
    layout = layout_of(config)
    others = [] if ranks is None else ranks.await_loaded()
    sizes = [block_bytes(model.new_kv_cache(1)), *(each.block_bytes for each in others)]
    parts = block_parts(layout, model.spec.cache_copies(layout.tensor_parallel_size), sizes)
    tiers = None
    if keeps_blocks(spec):
        with phases("open the KV tiers"):
            tiers = _open_tiers(model, spec, parts, ranks)
    connector = None if tiers is None else tiers.store
    costs = _joint_costs(model, others, layout) if others else model.costs
    with phases("allocate the KV cache"):
        plan = _plan_cache(model, config, others)
    num_blocks, max_num_seqs, num_snapshots, max_context_length = plan
    config = with_planned_states(model, config, max_num_seqs, num_snapshots)
    config = with_planned_context(model, config, max_context_length)
    memory = None
    if ranks is not None:
        kept = None if tiers is None else KeptBlocks(tiers.num_slots * tiers.block_bytes, tiers.block_bytes, parts[0])
        with phases("join the ranks"):
            memory = ranks.begin(Begin(num_blocks, max_context_length, max_num_seqs, num_snapshots, kept), parts)
    proposer = build_proposer(spec, config, model, num_blocks, phases)
    own = executor_type(model, config)(
        model,
        num_blocks=num_blocks,
        max_num_seqs=config.engine.max_num_seqs,
        max_context_length=max_context_length,
        num_snapshots=num_snapshots,
        connector=connector if ranks is None else memory,
        eagle=proposer if isinstance(proposer, EagleProposer) else None,
        context=None if ranks is None else context_of(config, 0, ranks.group),
    )
    load: LoadFunction = partial(load_adapter, model=model, max_rank=config.lora.max_rank)
    executor: Executor = own
    if ranks is not None:
        blocks = RankBlocks(tiers.store, memory, ranks.answers) if tiers is not None and memory is not None else None
        executor = RanksExecutor(own, ranks.pipes, config.pipeline_parallel_size, load, blocks)
        load = executor.load_adapter
    with phases("warm up"):
        if ranks is None and model.can_be_captured:
            compile_ahead(partial(own.compile_ahead, config.engine.token_budget))
        warm_up(executor, model.spec.vocab_size)
        if isinstance(proposer, DraftProposer | EagleProposer):
            proposer.warm_up()
    with phases("time products"):
        device, dtype = model.kernels.device, model.kernels.activation_dtype(model.dtype)
        recorder = recorder_for(device) if model.kernels.captures_steps else None
        speeds = product_speeds(model.input_products, dtype, device, recorder)
        step_time = StepTimeModel(expected=expected_steps(model.costs, speeds))
    card = _card(
        model,
        phases,
        kind="generate",
        max_context_length=max_context_length,
        kv_blocks=num_blocks,
        kv_dtype=model.kv_dtype,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
    )
    may_sleep = ranks is None and spec.role == "both"
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
        adapters=own.adapters if layout.pipeline_parallel_size == 1 else None,
        host=partial(_host_adapters, model, own, spec, load, phases) if layout.pipeline_parallel_size == 1 else None,
        connector=connector,
        micro_batches=config.pipeline_parallel_size,
        num_snapshots=num_snapshots if model.spec.has_states else None,
        ranks=ranks,
        experts=ExpertLoads(model, config.experts.load_file),
        sleep=partial(SleepingModel, model, partial(_rebuild, model, spec)) if may_sleep else None,
        prefill_client=PrefillClient(*peer) if peer is not None and spec.role == "decode" else None,
        prefill_server=PrefillServer(*peer, spec.endpoint.directory)
        if peer is not None and spec.role == "prefill"
        else None,
        disaggregation=config.disaggregation,
        masks=masks,
    )


def _plan_cache(model: Decoder, config: ModelConfig, others: Sequence[Loaded]) -> CachePlan:
    """Of the KV cache, the same on each rank: what the memory of all of them has room for."""
    layout, engine, share = layout_of(config), config.engine, config.hardware.gpu_memory_utilization
    memories = [each for each in (model.kernels.device_memory(), *(other.memory for other in others)) if each]
    gpu, held = None, list[Decoder | Loaded]([model, *others])
    if memories:
        least = min(memories, key=lambda memory: memory.usable(share))
        guesses = 0 if config.speculation.chosen == "none" else config.speculation.length
        verified = min(engine.token_budget, engine.max_num_seqs * (1 + guesses))
        beside = step_bytes(model.spec, engine.token_budget, engine.max_num_seqs, verified)
        gpu = GpuBudget(least, share, layout.world_size, beside)
        log.info("the memory of the GPU: %s", gpu, extra={"model": config.name})
    return plan_cache(
        model.spec,
        model.kv_dtype,
        kv_cache_gib=config.kv_cache_gib,
        max_num_seqs=engine.max_num_seqs,
        max_context_length=config.max_context_length or model.spec.max_context_length,
        may_lower_seqs="max_num_seqs" not in engine.model_fields_set,
        may_lower_context=config.max_context_length is None,
        weight_bytes=sum(each.layer_bytes + each.head_bytes for each in held),
        gpu=gpu,
        copies=layout.prefill_context_parallel_size * model.spec.cache_copies(layout.tensor_parallel_size),
    )


def _open_tiers(
    model: Decoder, spec: ReplicaSpec, parts: Sequence[BlockPart], ranks: RankProcesses | None
) -> BuiltTiers:
    config, layout = spec.model_config, layout_of(spec.model_config)
    divided = layout.tensor_parallel_size > 1 or config.tensor_parallel_invariant
    return build_tiers(
        model,
        config.kv_tiers or KVTiersConfig(),
        config.name,
        Path(spec.directory),
        shared=spec.role != "both",
        sums=(divided, layout.tensor_parallel_size, layout.pipeline_parallel_size),
        size=slot_bytes(parts),
        memory_of=None if ranks is None else ranks.memory,
    )


def _joint_costs(model: Decoder, others: Sequence[Loaded], layout: RankLayout) -> DecoderCosts:
    """Costs of a step of all ranks together; those that share long prompts hold the same weights."""
    copies = layout.prefill_context_parallel_size
    return loaded_costs(
        model.spec,
        layer_bytes=(model.layer_bytes + sum(each.layer_bytes for each in others)) // copies,
        head_bytes=(model.head_bytes + sum(each.head_bytes for each in others)) // copies,
        kv_bytes_per_token=model.spec.kv_bytes_per_token(model.kv_dtype),
    )


def _host_adapters(
    model: Decoder,
    executor: InProcessExecutor,
    spec: ReplicaSpec,
    load: LoadFunction,
    phases: _Phases,
    engine: EngineCore,
) -> AdapterHost:
    config = spec.model_config
    limit = config.lora.host_memory_gib
    host = AdapterHost(
        load,
        executor.adapters,
        engine,
        num_blocks=executor.num_blocks,
        max_bytes=model.kernels.memory_bytes() // 10 if limit is None else int(limit * GIB),
        config=config.lora,
    )
    if config.adapters:
        replaced = {each.name for each in spec.adapters}
        with phases("load adapters"):
            host.load_now(each for each in configured_adapters(config) if each.name not in replaced)
    host.load_beside(spec.adapters)
    return host


def build_proposer(
    spec: ReplicaSpec, config: ModelConfig, model: Decoder, num_blocks: int, phases: _Phases
) -> Proposer | None:
    """What guesses tokens, as configured; a draft model is loaded. Raises as `load_draft`."""
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


def _kind_of_encoder(model: Encoder | CausalEncoder) -> str:
    if isinstance(model, CausalEncoder):
        return "embed" if model.head is None else "score"
    return "embed" if model.spec.classifier is None else "score"


def _build_encoder(model: Encoder | CausalEncoder, config: ModelConfig, phases: _Phases) -> EmbedService:
    runner = EncoderRunner(model, config.engine.token_budget)
    with phases("warm up"):
        compile_ahead(runner.compile_ahead)
        runner.embed([[0]])
    length, kind = model.spec.max_context_length, _kind_of_encoder(model)
    size = model.spec.hidden_size if kind == "embed" else 0
    template = QWEN3 if kind == "score" and isinstance(model, CausalEncoder) else ""
    card = _card(model, phases, kind=kind, max_context_length=length, embedding_size=size, pair_template=template)
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
