"""Service of a decoder: plan its memory, join its ranks, warm it up, put the engine's parts together. Brings torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.model import ModelConfig
from kvarn.costs.cache_plan import CachePlan
from kvarn.costs.decoder import DecoderCosts, loaded_costs
from kvarn.costs.roofline import Ceilings
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import Executor
from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.step_time import StepTimeModel
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.masks import GrammarMasks
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.kernels.device.graphs import recorder_for
from kvarn.kernels.device.memory import GIB
from kvarn.models import Decoder
from kvarn.models.adapters import load_adapter
from kvarn.replica.server.adapters import AdapterHost, LoadFunction
from kvarn.replica.server.cpu import usable_cores
from kvarn.replica.server.experts import ExpertLoads
from kvarn.replica.server.generate import GenerateService, MakeCore
from kvarn.replica.server.kv_tiers import BuiltTiers, build_tiers
from kvarn.replica.server.prefill.client import PrefillClient
from kvarn.replica.server.prefill.server import PrefillServer
from kvarn.replica.server.ranks.parts import context_of, executor_type, keeps_blocks, layout_of
from kvarn.replica.server.ranks.processes import Begin, KeptBlocks, Loaded, RankProcesses
from kvarn.replica.server.schedule_file import recording_core
from kvarn.replica.server.sleep import Rebuild, SleepingModel
from kvarn.replica.server.startup.memory import check_recurrent, plan_memory, with_planned_context, with_planned_states
from kvarn.replica.server.startup.phases import Phases, model_card
from kvarn.replica.server.startup.proposer import build_proposer
from kvarn.replica.server.startup.warm_up import compile_ahead, warm_up
from kvarn.replica.server.step_time_prior import expected_steps, product_speeds, step_floor_s
from kvarn.replica.spec import ReplicaSpec, configured_adapters
from kvarn.shapes import BLOCK_SIZE
from kvarn.text.checkpoint import resolve_tokenizer
from kvarn.text.errors import TextError
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.kv_blocks import block_bytes
from kvarn.worker.proposers.draft import DraftProposer
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.ranks.blocks import BlockPart, RankBlocks, SlotMemory, block_parts, slot_bytes
from kvarn.worker.ranks.collectives import RankLayout
from kvarn.worker.ranks.executor import RanksExecutor

log = logging.getLogger(__name__)


def build_decoder(
    model: Decoder, spec: ReplicaSpec, phases: Phases, ranks: RankProcesses | None, rebuild: Rebuild
) -> GenerateService:
    config, layout = spec.model_config, layout_of(spec.model_config)
    check_recurrent(model, config)
    with phases("read the vocabulary"):
        masks = _grammar_masks(spec, model.spec.vocab_size)
    others = [] if ranks is None else ranks.await_loaded()
    sizes = [block_bytes(model.new_kv_cache(1)), *(each.block_bytes for each in others)]
    block = block_parts(layout, model.spec.cache_copies(layout.tensor_parallel_size), sizes)
    tiers = None
    if keeps_blocks(spec):
        with phases("open the KV tiers"):
            tiers = _open_tiers(model, spec, block, ranks)
    with phases("allocate the KV cache"):
        plan = plan_memory(model, config, others)
    config = with_planned_states(model, config, plan.max_num_seqs, plan.num_snapshots)
    config = with_planned_context(model, config, plan.max_context_length)
    memory = None
    if ranks is not None:
        with phases("join the ranks"):
            memory = _join(ranks, plan, tiers, block)
    proposer = build_proposer(spec, config, model, plan.num_blocks, phases)
    built = _build_executor(model, config, plan, proposer, tiers, ranks, memory)
    with phases("warm up"):
        _warm_up(model, config, built, proposer, alone=ranks is None)
    with phases("time products"):
        speeds = _measured_speeds(model)
    has_adapters = layout.pipeline_parallel_size == 1
    prefill_client, prefill_server = _prefill_ends(spec, tiers)
    experts = ExpertLoads(model, config.experts.load_file)
    parts = EngineParts(
        built.executor,
        config.engine,
        namespace=config.name if tiers is None else tiers.namespace,
        step_time=StepTimeModel(expected=expected_steps(model.costs, speeds)),
        proposer=proposer,
        speculation=config.speculation,
        masks=masks,
        connector=None if tiers is None else tiers.store,
        adapters=built.own.adapters if has_adapters else None,
        prefill_peer=prefill_client,
        disaggregation=config.disaggregation,
        micro_batches=config.pipeline_parallel_size,
        num_snapshots=plan.num_snapshots if model.spec.has_states else None,
    )
    card = model_card(
        model,
        phases,
        kind="generate",
        max_context_length=plan.max_context_length,
        kv_blocks=plan.num_blocks,
        read_bytes_per_s=speeds.bytes_per_s if ranks is None else 0.0,
        kv_dtype=model.kv_dtype,
        block_size=BLOCK_SIZE,
        max_num_seqs=plan.max_num_seqs,
    )
    may_sleep = ranks is None and spec.role == "both"
    closing = [each.close for each in (prefill_client, prefill_server, parts.connector, experts, ranks) if each]
    return GenerateService(
        parts,
        card,
        costs=_joint_costs(model, others, layout) if others else model.costs,
        adapter_host=partial(_host_adapters, model, built, spec, phases) if has_adapters else None,
        prefill_client=prefill_client,
        prefill_server=prefill_server,
        experts=experts,
        closing=[*closing, masks.shutdown],
        floor_of=partial(step_floor_s, costs=model.costs, speeds=speeds),
        sleep=partial(SleepingModel, model, rebuild) if may_sleep else None,
        make_core=_make_core(spec),
    )


def _make_core(spec: ReplicaSpec) -> MakeCore:
    folder = spec.model_config.engine.schedule_folder
    return EngineCore if folder is None else partial(recording_core, Path(folder).expanduser(), spec.replica)


def _grammar_masks(spec: ReplicaSpec, vocab_size: int) -> GrammarMasks:
    """Masks that keep answers to grammars. A checkpoint that allows none serves everything else."""
    config, checkpoint = spec.model_config, Path(spec.directory)
    try:
        directory = resolve_tokenizer(config.tokenizer) if config.tokenizer else checkpoint
        vocabulary = Vocabulary.load(directory, checkpoint, config.generation_config, vocab_size)
    except TextError as error:  # the gateway reads the same files and reports it
        return GrammarMasks(str(error))
    except (GrammarError, OSError) as error:
        log.warning("structured output is off for this model", extra={"model": config.name, "reason": str(error)})
        return GrammarMasks(str(error))
    return GrammarMasks(vocabulary, max(1, usable_cores() // 2))


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


def _join(
    ranks: RankProcesses, plan: CachePlan, tiers: BuiltTiers | None, block: Sequence[BlockPart]
) -> SlotMemory | None:
    """Have the other ranks allocate their caches; returns this rank's part of the memory that keeps blocks."""
    kept = None if tiers is None else KeptBlocks(tiers.num_slots * tiers.block_bytes, tiers.block_bytes, block[0])
    return ranks.begin(
        Begin(plan.num_blocks, plan.max_context_length, plan.max_num_seqs, plan.num_snapshots, kept), block
    )


class _BuiltExecutor(NamedTuple):
    executor: Executor
    own: InProcessExecutor  # this rank's part of it
    load: LoadFunction  # reads an adapter


def _build_executor(
    model: Decoder,
    config: ModelConfig,
    plan: CachePlan,
    proposer: Proposer | None,
    tiers: BuiltTiers | None,
    ranks: RankProcesses | None,
    memory: SlotMemory | None,
) -> _BuiltExecutor:
    store = None if tiers is None else tiers.store
    own = executor_type(model, config)(
        model,
        num_blocks=plan.num_blocks,
        max_num_seqs=plan.max_num_seqs,
        max_context_length=plan.max_context_length,
        num_snapshots=plan.num_snapshots,
        connector=store if ranks is None else memory,
        eagle=proposer if isinstance(proposer, EagleProposer) else None,
        context=None if ranks is None else context_of(config, 0, ranks.group),
    )
    load: LoadFunction = partial(load_adapter, model=model, max_rank=config.lora.max_rank)
    if ranks is None:
        return _BuiltExecutor(own, own, load)
    blocks = None if store is None or memory is None else RankBlocks(store, memory, ranks.answers)
    executor = RanksExecutor(own, ranks.pipes, config.pipeline_parallel_size, load, blocks)
    return _BuiltExecutor(executor, own, executor.load_adapter)


def _warm_up(
    model: Decoder, config: ModelConfig, built: _BuiltExecutor, proposer: Proposer | None, *, alone: bool
) -> None:
    if alone and model.can_be_captured:
        compile_ahead(partial(built.own.compile_ahead, config.engine.token_budget))
    warm_up(built.executor, model.spec.vocab_size)
    if isinstance(proposer, DraftProposer | EagleProposer):
        proposer.warm_up()


def _measured_speeds(model: Decoder) -> Ceilings:
    device, dtype = model.kernels.device.torch_device, model.kernels.operations.activation_dtype(model.dtype)
    recorder = recorder_for(device) if model.kernels.operations.captures_steps else None
    return product_speeds(model.input_products, dtype, device, recorder)


def _prefill_ends(spec: ReplicaSpec, tiers: BuiltTiers | None) -> tuple[PrefillClient | None, PrefillServer | None]:
    """Connection to the engine that computes prompts for this one, or the server of prompts for others."""
    if tiers is None or spec.role == "both":
        return None, None
    peer = tiers.store, spec.prefill_socket, tiers.digest, tiers.block_bytes
    if spec.role == "decode":
        return PrefillClient(*peer), None
    return None, PrefillServer(*peer, spec.endpoint.directory)


def _joint_costs(model: Decoder, others: Sequence[Loaded], layout: RankLayout) -> DecoderCosts:
    """Costs of a step of all ranks together; ranks that share long prompts hold the same weights."""
    copies = layout.prefill_context_parallel_size
    return loaded_costs(
        model.spec,
        layer_bytes=(model.layer_bytes + sum(each.layer_bytes for each in others)) // copies,
        head_bytes=(model.head_bytes + sum(each.head_bytes for each in others)) // copies,
        kv_bytes_per_token=model.spec.kv_bytes_per_token(model.kv_dtype),
    )


def _host_adapters(
    model: Decoder, built: _BuiltExecutor, spec: ReplicaSpec, phases: Phases, engine: EngineCore
) -> AdapterHost:
    config = spec.model_config
    limit = config.lora.host_memory_gib
    host = AdapterHost(
        built.load,
        built.own.adapters,
        engine,
        num_blocks=built.own.num_blocks,
        max_bytes=model.kernels.device.memory_bytes() // 10 if limit is None else int(limit * GIB),
        config=config.lora,
    )
    if config.adapters:
        replaced = {each.name for each in spec.adapters}
        with phases("load adapters"):
            host.load_now(each for each in configured_adapters(config) if each.name not in replaced)
    host.load_beside(spec.adapters)
    return host
