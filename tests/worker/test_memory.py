import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.costs.cache_plan import CacheTooLargeError, CacheTooSmallError, GpuBudget, plan_cache, step_bytes
from kvarn.costs.device_memory import DRIVER_BYTES, DeviceMemory
from kvarn.kernels.batch import HeadShape
from kvarn.kernels.device.memory import usable_memory
from kvarn.models import Decoder, DecoderSpec
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.attention import AttentionKind, DeltaDimensions, GroupedDimensions

GIB = 1024**3


def plan_kv_blocks(*arguments: Any, **options: Any) -> int:
    """The blocks alone."""
    return plan_cache(*arguments, **options).num_blocks


@pytest.fixture(scope="module")
def spec(tiny_model: Callable[[str], Decoder]) -> DecoderSpec:
    """3 layers, 2 key-value heads of 16: 384 bytes a token in bfloat16, 6 KiB a block."""
    return dataclasses.replace(tiny_model("llama").spec, max_context_length=4096)


def with_attention(spec: DecoderSpec, *kinds: AttentionKind) -> DecoderSpec:
    """The same decoder with other layers."""
    return dataclasses.replace(spec, layers=[dataclasses.replace(spec.layers[0], attention=kind) for kind in kinds])


def test_a_given_size_is_used_in_full(spec: DecoderSpec) -> None:
    for gib, dtype, expected in ((1, "bfloat16", GIB // 6144), (0.5, "float32", GIB // 2 // 12288)):
        blocks = plan_kv_blocks(
            spec, dtype, kv_cache_gib=gib, memory_bytes=16 * GIB, max_num_seqs=1, max_context_length=512
        )
        assert blocks == expected


def test_the_default_is_a_tenth_of_the_memory_or_what_full_contexts_need(spec: DecoderSpec) -> None:
    def blocks(max_num_seqs: int) -> int:
        return plan_kv_blocks(
            spec,
            "bfloat16",
            kv_cache_gib=None,
            max_num_seqs=max_num_seqs,
            max_context_length=1000,
            memory_bytes=10 * GIB,
        )

    assert blocks(10_000) == GIB // 6144
    assert blocks(4) == 4 * 63


def test_the_default_grows_to_one_full_context_but_leaves_a_tenth_beside_the_weights(spec: DecoderSpec) -> None:
    block_bytes = 6144
    context = 16_000
    needed = context // 16 * block_bytes
    size = {"kv_cache_gib": None, "max_num_seqs": 8, "max_context_length": context}
    assert plan_kv_blocks(spec, "bfloat16", memory_bytes=4 * needed, **size) == context // 16
    assert plan_kv_blocks(spec, "bfloat16", memory_bytes=2 * needed, weight_bytes=needed // 2, **size) == context // 16
    with pytest.raises(CacheTooSmallError):
        plan_kv_blocks(spec, "bfloat16", memory_bytes=2 * needed, weight_bytes=needed, **size)


@pytest.mark.parametrize(
    ("machine_gib", "weights_gib", "context_gib", "lowered"),
    [(8, 1.1, 4.4, False), (8, 2.3, 4.0, False), (16, 7.5, 5.6, False), (24, 14.9, 16, True), (24, 7.1, 48, True)],
    ids=["Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-4B", "Llama-3.1-8B", "Phi-3-mini-128k"],
)
def test_default_context_is_lowered_to_the_memory(spec, machine_gib, weights_gib, context_gib, lowered):
    """Weights and one trained context of well-known models in bfloat16."""
    block_bytes = 6144
    trained = int(context_gib * GIB) // block_bytes * BLOCK_SIZE - 5
    size = {"max_num_seqs": 256, "weight_bytes": int(weights_gib * GIB), "memory_bytes": machine_gib * GIB}
    plan = plan_cache(spec, "bfloat16", kv_cache_gib=None, max_context_length=trained, may_lower_context=True, **size)
    cache = plan.num_blocks * block_bytes
    assert cache + size["weight_bytes"] <= 0.9 * machine_gib * GIB
    if not lowered:
        assert (plan.max_context_length, plan.num_blocks) == (trained, -(-trained // BLOCK_SIZE))
        return
    assert plan.max_context_length == plan.num_blocks * BLOCK_SIZE < trained
    assert cache + size["weight_bytes"] > 0.9 * machine_gib * GIB - block_bytes
    # What the warning names starts as it is; what somebody asked for is not lowered.
    named = plan_cache(spec, "bfloat16", kv_cache_gib=None, max_context_length=plan.max_context_length, **size)
    assert named == plan
    with pytest.raises(CacheTooSmallError, match=f"max_context_length to at most {plan.max_context_length}"):
        plan_cache(spec, "bfloat16", kv_cache_gib=None, max_context_length=trained, **size)
    with pytest.raises(CacheTooSmallError):
        plan_cache(spec, "bfloat16", kv_cache_gib=1, max_context_length=trained, may_lower_context=True, **size)


def test_a_size_that_the_weights_do_not_leave_is_not_advised(spec: DecoderSpec) -> None:
    size: dict[str, Any] = {"max_num_seqs": 8, "memory_bytes": 16 * GIB, "weight_bytes": int(13.5 * GIB)}
    context = 4 * GIB // 6144 * BLOCK_SIZE
    with pytest.raises(CacheTooSmallError) as caught:
        plan_cache(spec, "bfloat16", kv_cache_gib=1, max_context_length=context, **size)
    assert str(caught.value).endswith(f"Set max_context_length to at most {GIB // 6144 * BLOCK_SIZE}.")
    with pytest.raises(CacheTooSmallError, match=r"Set kv_cache_gib to at least 2\.000, or set max_context_length"):
        plan_cache(spec, "bfloat16", kv_cache_gib=1, max_context_length=context // 2, **size)


GPU_SIZES = {"kv_cache_gib": None, "memory_bytes": 0, "max_num_seqs": 10**9, "max_context_length": 16}


@given(
    total=st.integers(1, 200),
    held=st.lists(st.tuples(st.floats(0.05, 1), st.integers(0, 100)), min_size=1, max_size=4),
    stranger=st.integers(0, 100),
)
def test_engines_that_start_one_after_another_on_a_gpu_stay_within_their_shares_and_the_gpu(
    spec, total, held, stranger
):
    """A GPU of `total` GiB, of which a program that is not Kvarn holds some; engines by share and weights."""
    taken = min(stranger, total) * GIB
    for share, weights in held:
        own = weights * GIB + DRIVER_BYTES
        if taken + own > total * GIB:
            break  # refused before
        memory = DeviceMemory.of(total * GIB, total * GIB - taken - own, weights * GIB)
        budget = GpuBudget(memory, share, ranks=1, step_bytes=GIB)
        try:
            cache = plan_kv_blocks(spec, "bfloat16", gpu=budget, **GPU_SIZES) * 6144
        except CacheTooSmallError as error:
            assert f"{total}.0 GiB (gpu_memory_utilization)" in str(error)
            assert own + GIB + 6144 > total * GIB * share or taken + own + GIB + 6144 > total * GIB
            break
        taken += own + cache + GIB
        assert own + cache + GIB <= total * GIB * share + 1
        assert taken <= total * GIB
        # Nothing is left that another block would fit into.
        assert own + cache + GIB + 6144 > total * GIB * share or taken + 6144 > total * GIB


def test_driver_memory_of_a_process_counts_as_its_own() -> None:
    alone = DeviceMemory.of(80 * GIB, 80 * GIB - 500_000_000, 0)
    assert (alone.own, alone.others) == (500_000_000, 0)
    beside = DeviceMemory.of(80 * GIB, 30 * GIB, 20 * GIB)
    assert (beside.own, beside.others) == (20 * GIB + DRIVER_BYTES, 30 * GIB - DRIVER_BYTES)
    assert DeviceMemory.of(GIB, 0, GIB + 1).own == GIB + 1  # free and reserved were asked for one after the other


def test_a_share_that_weights_and_one_sequence_pass_is_an_error_with_all_figures(spec: DecoderSpec) -> None:
    budget = GpuBudget(DeviceMemory(80 * GIB, 30 * GIB, 38 * GIB), 0.5, ranks=1, step_bytes=GIB)
    with pytest.raises(CacheTooSmallError) as caught:
        plan_kv_blocks(spec, "bfloat16", gpu=budget, **(GPU_SIZES | {"max_context_length": 4_000_000}))
    for figure in ("0.5 of a GPU's 80.0 GiB", "weights take 38.0", "other processes hold 12.0", "holds 2796192 tokens"):
        assert figure in str(caught.value)
    with pytest.raises(CacheTooLargeError, match=r"31 GiB does not fit: 30\.0 GiB are free"):
        plan_kv_blocks(spec, "bfloat16", gpu=budget, **(GPU_SIZES | {"kv_cache_gib": 31}))


def test_ranks_have_a_cache_for_the_gpu_that_has_least_for_it(spec: DecoderSpec) -> None:
    budget = GpuBudget(DeviceMemory(80 * GIB, 60 * GIB, 8 * GIB), 0.9, ranks=4, step_bytes=2 * GIB)
    assert plan_kv_blocks(spec, "bfloat16", gpu=budget, **GPU_SIZES) == 4 * 58 * GIB // 6144


def test_a_step_of_a_larger_budget_needs_more(spec: DecoderSpec) -> None:
    assert step_bytes(spec, 2048, 8) < step_bytes(spec, 8192, 8) < step_bytes(spec, 8192, 4096)
    delta = DeltaDimensions(key_heads=16, value_heads=32, key_dim=128, value_dim=128, window=4)
    assert (
        step_bytes(with_attention(spec, *[delta] * spec.num_layers), 2048, 8)
        > step_bytes(spec, 2048, 8) + 2048 * 16_000 * 16
    )


def test_a_cache_above_what_the_weights_leave_is_refused_with_the_figures(spec: DecoderSpec) -> None:
    size = {"max_num_seqs": 8, "max_context_length": 512, "memory_bytes": 10 * GIB}
    with pytest.raises(CacheTooLargeError, match=r"5000 GiB does not fit .* 10\.0 GiB, of which the weights take 3\.0"):
        plan_kv_blocks(spec, "bfloat16", kv_cache_gib=5000, weight_bytes=3 * GIB, **size)
    assert plan_kv_blocks(spec, "bfloat16", kv_cache_gib=7, weight_bytes=3 * GIB, **size) == 7 * GIB // 6144


@pytest.fixture(scope="module")
def recurrent(spec: DecoderSpec) -> DecoderSpec:
    """Qwen3-Next 80B: of 48 layers 36 have states, 75 MiB a sequence; 24 KiB a token in the others."""
    delta = DeltaDimensions(key_heads=16, value_heads=32, key_dim=128, value_dim=128, window=4)
    grouped = GroupedDimensions(num_heads=16, num_kv_heads=2, head_dim=256)
    large = with_attention(spec, *[grouped] * 12, *[delta] * 36)
    assert (large.state_bytes >> 20, large.kv_bytes_per_token("bfloat16")) == (75, 24 * 1024)
    return large


@pytest.mark.parametrize(("machine_gib", "sequences"), [(64, 70), (96, 150), (128, 240), (192, 256), (512, 256)])
def test_a_large_model_with_states_starts_with_its_defaults(recurrent, machine_gib, sequences):
    """Its weights take 41 GiB in int4, and one full context 6."""
    plan = plan_cache(
        recurrent,
        "bfloat16",
        kv_cache_gib=None,
        max_num_seqs=256,
        may_lower_seqs=True,
        max_context_length=262_144,
        weight_bytes=41 * GIB,
        memory_bytes=machine_gib * GIB,
    )
    states = (plan.max_num_seqs + plan.num_snapshots) * recurrent.state_bytes
    blocks = plan.num_blocks * BLOCK_SIZE * recurrent.kv_bytes_per_token("bfloat16")
    assert sequences <= plan.max_num_seqs <= 256
    assert plan.num_snapshots >= plan.max_num_seqs // 5
    assert plan.num_blocks >= 262_144 // BLOCK_SIZE
    assert 41 * GIB + states + blocks <= 0.9 * machine_gib * GIB


def test_configured_max_num_seqs_is_not_lowered(recurrent: DecoderSpec) -> None:
    size = {"kv_cache_gib": 8, "max_context_length": 4096, "memory_bytes": 64 * GIB}
    lowered = plan_cache(recurrent, "bfloat16", max_num_seqs=256, may_lower_seqs=True, **size)
    assert lowered.max_num_seqs == (8 * GIB - 4096 * 24 * 1024) // 2 // recurrent.state_bytes
    with pytest.raises(CacheTooSmallError, match="states of 256 sequences"):
        plan_cache(recurrent, "bfloat16", max_num_seqs=256, **size)


@given(
    kv_cache_gib=st.none() | st.floats(0.01, 40),
    max_num_seqs=st.integers(1, 512),
    may_lower_seqs=st.booleans(),
    max_context_length=st.integers(1, 2_000_000),
    machine_gib=st.integers(8, 256),
    gpu_gib=st.none() | st.integers(8, 80),
)
def test_each_advice_for_states_and_contexts_that_do_not_fit_is_enough_by_itself(
    recurrent, machine_gib, gpu_gib, **size
):
    size["memory_bytes"] = 10_000 * GIB if size["kv_cache_gib"] else machine_gib * GIB
    if gpu_gib is not None and size["kv_cache_gib"] is None:
        size["gpu"] = GpuBudget(DeviceMemory(gpu_gib * GIB, gpu_gib * GIB, 0), 0.9, ranks=1, step_bytes=GIB)
    try:
        plan = plan_cache(recurrent, "bfloat16", **size)
    except CacheTooSmallError as error:
        advice = str(error)
        ways = re.findall(r"(kv_cache_gib|max_num_seqs|max_context_length) to at (?:least|most) ([0-9.]*[0-9])", advice)
        assert ways or "Raise gpu_memory_utilization" in advice or "more memory" in advice
        for setting, value in ways:
            enough = size | {setting: float(value) if setting == "kv_cache_gib" else int(value)}
            assert plan_cache(recurrent, "bfloat16", **enough).num_blocks > 0
    else:
        assert size["may_lower_seqs"] or plan.max_num_seqs == size["max_num_seqs"]


@pytest.mark.parametrize(
    ("files", "membership"),
    [
        ({"memory.max": "123456789\n"}, "0::/\n"),
        ({"memory.max": "max\n", "a/memory.max": "123456789\n", "a/b/memory.max": "999999999\n"}, "0::/a/b\n"),
        ({"memory/memory.limit_in_bytes": "123456789\n"}, "5:cpu:/\n4:memory:/docker/x\n"),
        ({"memory/a/memory.limit_in_bytes": "123456789\n"}, "4:cpuset,memory:/a\n"),
    ],
)
def test_the_tightest_cgroup_limit_counts(tmp_path: Path, files: dict[str, str], membership: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    process = tmp_path / "self"
    process.write_text(membership)
    assert usable_memory(tmp_path, process) == 123456789


def test_without_limits_all_of_the_machine_counts(tmp_path: Path) -> None:
    assert usable_memory(tmp_path, tmp_path / "absent") > 100_000_000
    assert usable_memory() <= usable_memory(tmp_path, tmp_path / "absent")


@pytest.mark.parametrize("head_dim", [16, 64, 96, 100, 120])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_block_takes_the_bytes_that_were_planned_for_it(head_dim: int, dtype: KvDtype, spec: DecoderSpec) -> None:
    kv_cache = pytest.importorskip("kvarn.kernels.cpu.kv_cache", reason="needs compiled kernels", exc_type=ImportError)
    wide = with_attention(spec, *[GroupedDimensions(num_heads=4, num_kv_heads=2, head_dim=head_dim)] * 3)
    cache = kv_cache.new_kv_cache(3, 5, HeadShape(4, 2, head_dim), dtype)
    held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    assert held == 5 * BLOCK_SIZE * wide.kv_bytes_per_token(dtype)
