"""The metrics once more, under vLLM's names and those of its production stack's router, for boards made for these.

They are made of the samples of a page when it is read: nothing is counted twice. Names as of vLLM 0.33. What is
measured in the gateway, for a model as a whole, has engine 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvarn.observe.merge import MetricFamily, MetricSample
from kvarn.observe.timeline import Phase, waiting_reason

_DEFERRED = {waiting_reason(phase) for phase in (Phase.WAIT_ADAPTER, Phase.WAIT_FETCH, Phase.WAIT_MASK)}
_FINISH_REASONS = frozenset({"stop", "length", "abort", "error"})


@dataclass(frozen=True, slots=True)
class _Source:
    """A metric whose samples are added to those of a target."""

    name: str
    factor: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that its samples get."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Labels of those of its samples that count."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A metric of vLLM's. Samples with the same labels are summed."""

    name: str
    sources: Sequence[_Source]
    kept: Mapping[str, str] = field(default_factory=dict)
    """More labels that stay, with vLLM's names of them."""
    values: Callable[[str], str] = lambda value: value
    """Changes the values of those labels."""
    model_label: str = "model_name"
    engine_label: str = "engine"
    """Empty: it has none."""


def _same(name: str, *sources: str, **kept: str) -> _Target:
    return _Target(f"vllm:{name}", [_Source(source) for source in sources], kept)


def _router(name: str, source: str, factor: float = 1.0) -> _Target:
    return _Target(name, [_Source(source, factor)], model_label="model", engine_label="server")


def _transfer(name: str, **metrics: str) -> _Target:
    """Blocks on their way between the KV cache and memory; `metrics`: by direction."""
    sources = [
        _Source(metric, labels={"transfer_type": direction}, where={"tier": "memory"})
        for direction, metric in metrics.items()
    ]
    return _Target(f"vllm:{name}", sources)


def _by_source(source: str) -> dict[str, str]:
    return {"source": source}


_TARGETS = (
    _same("num_requests_running", "kvarn_running_requests"),
    _same("num_requests_waiting", "kvarn_queue_depth"),
    _Target(
        "vllm:num_requests_waiting_by_reason",
        [_Source("kvarn_queue_waiting")],
        {"reason": "reason"},
        lambda reason: "deferred" if reason in _DEFERRED else "capacity",
    ),
    _same("kv_cache_usage_perc", "kvarn_kv_utilisation"),
    _same("gpu_cache_usage_perc", "kvarn_kv_utilisation"),
    _same("prefix_cache_queries", "kvarn_prompt_tokens", "kvarn_cached_tokens"),
    _same("prefix_cache_hits", "kvarn_cached_tokens"),
    _same("gpu_prefix_cache_queries", "kvarn_prompt_tokens", "kvarn_cached_tokens"),
    _same("gpu_prefix_cache_hits", "kvarn_cached_tokens"),
    _same("external_prefix_cache_queries", "kvarn_external_prefix_cache_queries"),
    _same("external_prefix_cache_hits", "kvarn_external_prefix_cache_hits"),
    _same("prompt_tokens", "kvarn_prompt_tokens", "kvarn_cached_tokens"),
    _same("prompt_tokens_cached", "kvarn_cached_tokens"),
    _Target(
        "vllm:prompt_tokens_by_source",
        [
            _Source("kvarn_prompt_tokens", labels=_by_source("local_compute")),
            _Source("kvarn_cached_tokens", labels=_by_source("local_cache_hit")),
            _Source("kvarn_external_prefix_cache_hits", -1.0, _by_source("local_cache_hit")),
            _Source("kvarn_external_prefix_cache_hits", labels=_by_source("external_kv_transfer")),
        ],
    ),
    _same("generation_tokens", "kvarn_output_tokens"),
    _same("iteration_tokens_total", "kvarn_step_tokens"),
    _same("num_preemptions", "kvarn_preemptions"),
    _same("time_to_first_token_seconds", "kvarn_ttft_seconds"),
    _same("inter_token_latency_seconds", "kvarn_itl_seconds"),
    _same("request_time_per_output_token_seconds", "kvarn_tpot_seconds"),
    _same("time_per_output_token_seconds", "kvarn_tpot_seconds"),
    _same("e2e_request_latency_seconds", "kvarn_answer_seconds"),
    _same("request_queue_time_seconds", "kvarn_queue_seconds"),
    _same("request_prefill_time_seconds", "kvarn_prefill_seconds"),
    _same("request_decode_time_seconds", "kvarn_decode_seconds"),
    _same("request_inference_time_seconds", "kvarn_inference_seconds"),
    _same("request_prompt_tokens", "kvarn_turn_prompt_tokens"),
    _same("request_generation_tokens", "kvarn_turn_output_tokens"),
    _same("request_max_num_generation_tokens", "kvarn_turn_output_tokens"),
    _same("request_params_max_tokens", "kvarn_turn_max_tokens"),
    _same("request_params_n", "kvarn_turn_choices"),
    _transfer(
        "kv_offload_total_bytes",
        GPU_to_CPU="kvarn_kv_offload_stored_bytes",
        CPU_to_GPU="kvarn_kv_offload_loaded_bytes",
    ),
    _transfer("kv_offload_total_time", CPU_to_GPU="kvarn_kv_offload_load_seconds"),
    _Target(
        "vllm:request_success",
        [_Source("kvarn_turns")],
        {"finish_reason": "finished_reason"},
        lambda reason: reason if reason in _FINISH_REASONS else "stop",
    ),
    _same("admission_rejections", "kvarn_admission_shed", reason="reason"),
    _same(
        "lora_requests_info",
        "kvarn_lora_requests_info",
        max_lora="max_lora",
        running_lora_adapters="running_lora_adapters",
        waiting_lora_adapters="waiting_lora_adapters",
    ),
    _same("spec_decode_num_drafts", "kvarn_spec_decode_num_drafts"),
    _same("spec_decode_num_draft_tokens", "kvarn_spec_decode_num_draft_tokens"),
    _same("spec_decode_num_accepted_tokens", "kvarn_spec_decode_num_accepted_tokens"),
    _same(
        "spec_decode_num_accepted_tokens_per_pos",
        "kvarn_spec_decode_num_accepted_tokens_per_pos",
        position="position",
    ),
    _same("estimated_flops_per_gpu", "kvarn_operations"),
    _same("estimated_read_bytes_per_gpu", "kvarn_read_bytes"),
    _Target("vllm:engine_sleep_state", [_Source("kvarn_replica_up", labels={"sleep_state": "awake"})]),
    _same(
        "cache_config_info",
        "kvarn_kv_cache_info",
        block_size="block_size",
        num_blocks="num_gpu_blocks",
        dtype="cache_dtype",
    ),
    # The router of vLLM's production stack.
    _router("vllm:current_qps", "kvarn_finished_per_second"),
    _router("vllm:healthy_pods_total", "kvarn_replica_up"),
    _router("vllm:num_incoming_requests", "kvarn_arrived_requests"),
    _router("router_cpu_usage_percent", "kvarn_host_cpu_ratio", 100.0),
    _router("router_memory_usage_percent", "kvarn_host_memory_ratio", 100.0),
    _router("router_disk_usage_percent", "kvarn_host_disk_ratio", 100.0),
)


def vllm_families(families: Sequence[MetricFamily]) -> list[MetricFamily]:
    """The families that vLLM would show of the same work. One of which nothing is known is left out."""
    known = {family.name: family for family in families}
    made = (_made(target, known) for target in _TARGETS)
    return [family for family in made if family is not None and family.samples]


def _made(target: _Target, known: Mapping[str, MetricFamily]) -> MetricFamily | None:
    first = known.get(target.sources[0].name)
    if first is None:
        return None
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], MetricSample] = {}
    for source in target.sources:
        family = known.get(source.name)
        for sample in [] if family is None else family.samples:
            suffix = sample.name.removeprefix(source.name)
            if suffix == "_created" or not source.where.items() <= sample.labels.items():
                continue
            labels = _labels(target, sample.labels) | dict(source.labels)
            added, key = sample.value * source.factor, (suffix, tuple(labels.items()))
            if (before := samples.get(key)) is None:
                samples[key] = MetricSample(target.name + suffix, labels, added, exemplar=sample.exemplar)
            else:
                before.value += added
    return MetricFamily(target.name, first.documentation, first.type, list(samples.values()))


def _labels(target: _Target, own: Mapping[str, str]) -> dict[str, str]:
    labels = {theirs: target.values(own[ours]) for ours, theirs in target.kept.items() if ours in own}
    if "le" in own:
        labels["le"] = own["le"]
    if "model" in own:
        labels[target.model_label] = own["model"]
        if target.engine_label == "engine":
            number = own.get("replica", "").rpartition("/")[2]
            labels["engine"] = number if number.isdecimal() else "0"
        elif target.engine_label:
            labels[target.engine_label] = own.get("replica", own["model"])
    return labels
