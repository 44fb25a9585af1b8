"""Memory and KV caches: worked examples that were published, and what must hold for every model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.planner.errors import PlanError
from kvarn.planner.memory import (
    MemoryPlan,
    ModelTooLargeError,
    ReplicaSetting,
    kv_bytes_per_token,
    plan_memory,
)
from kvarn.planner.models import PlannedModel, preset, preset_names
from kvarn.shapes import KvDtype
from kvarn.specs.place import Place
from kvarn.specs.rank_weights import rank_weights
from kvarn.specs.weight_bytes import weight_bytes
from profiles import examples

GIB = 1024**3
H100, H200 = 80 * 10**9, 141 * 10**9


def token_bytes(name: str, dtype: KvDtype = "bfloat16") -> int:
    return int(kv_bytes_per_token(preset(name), dtype).value)


def whole_weights(model: PlannedModel) -> int:
    return sum(weight_bytes(model.spec, Place(), model.forms()).values())


def test_llama_3_1_70b_takes_what_the_benchmarking_draft_says() -> None:
    """IETF's draft of the bmwg on inference benchmarks, appendix; Spheron and Denneman for the users."""
    each = token_bytes("Llama-3.1-70B")
    assert each == 2 * 80 * 8 * 128 * 2 == 327_680
    assert 4096 * each == 1_342_177_280
    assert 131_072 * each / 1e9 == pytest.approx(42.95, abs=0.005)
    assert 8 * 32_768 * each / 1e9 == pytest.approx(86, abs=0.5)
    assert 8 * 131_072 * each / 1e9 == pytest.approx(343, abs=1)
    assert whole_weights(preset("Llama-3.1-70B")) / 1e9 == pytest.approx(141, abs=0.5)


def test_llama_2_7b_takes_2_gib_for_4096_tokens() -> None:
    assert token_bytes("Llama-2-7b") == 524_288
    assert 4096 * token_bytes("Llama-2-7b") == 2 * GIB


@pytest.mark.parametrize(("device", "tokens", "users"), [(H100, 426_788, 52), (H200, 845_642, 103)])
def test_llama_3_1_8b_serves_the_users_of_a_device_that_were_computed(device: int, tokens: int, users: int) -> None:
    """Published for 0.90 of the memory and nothing in it but weights and cache. An engine needs more: its plan has some
    percent less."""
    model, each = preset("Llama-3.1-8B"), token_bytes("Llama-3.1-8B")
    assert each == 131_072
    room = (0.9 * device - whole_weights(model)) / each
    assert room == pytest.approx(tokens, rel=2e-5)
    assert int(room // 8192) == users
    plan = plan_memory(model, ReplicaSetting(max_context_length=8192), device)
    assert 0.93 * users < plan.users(8192).value <= users
    assert 0.93 * tokens < plan.kv_tokens.value < tokens


def test_an_8_bit_cache_holds_the_requests_that_were_computed() -> None:
    """Qwen3.6-27B-FP8's published sum has the 128 KiB a token of Qwen3-32B's cache in 8 bits."""
    assert token_bytes("Qwen3-32B", "fp8") == 128 * 1024
    assert pytest.approx(2.69, abs=0.005) == 43 * GIB / (128 * 1024) / 131_072
    setting = ReplicaSetting(kv_cache_dtype="fp8", kv_cache_gib=43, max_context_length=131_072, tensor_parallel=2)
    plan = plan_memory(preset("Qwen3-32B"), setting, H200)
    assert plan.kv_tokens.value == 43 * GIB / (128 * 1024)
    assert plan.users(40_960).value == 8


def test_a_latent_cache_is_one_row_a_token_and_each_rank_holds_it() -> None:
    assert token_bytes("DeepSeek-V3") == (512 + 64) * 61 * 2 == 70_272
    plan = plan_memory(preset("DeepSeek-V3"), ReplicaSetting(tensor_parallel=8, pipeline_parallel=2), 288 * 10**9)
    assert plan.block_bytes == 8 * 16 * 70_272
    assert plan.rank_block_bytes == 16 * (512 + 64) * 31 * 2  # the stage of 31 layers, of 61


def test_layers_with_windows_hold_their_whole_context_and_recurrent_ones_nothing() -> None:
    assert token_bytes("gemma-3-27b") == 62 * 2 * 16 * 128 * 2
    assert token_bytes("Qwen3-Next-80B-A3B") == 12 * 2 * 2 * 256 * 2  # twelve of 48 layers attend
    plan = plan_memory(preset("Qwen3-Next-80B-A3B"), ReplicaSetting(max_context_length=8192), 288 * 10**9)
    assert plan.model.spec.state_bytes == 36 * 4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    assert {"states", "snapshots"} <= {part.name for part in plan.parts}
    assert plan.users(16).value == plan.cache.max_num_seqs


def planned(name: str, device: int, setting: ReplicaSetting) -> MemoryPlan | None:
    try:
        return plan_memory(preset(name), setting, device)
    except PlanError:
        return None


@settings(max_examples=examples(45), derandomize=True, deadline=None)
@given(
    name=st.sampled_from(preset_names()),
    device=st.integers(16, 300),
    tensor=st.sampled_from([1, 2, 4, 8]),
    stages=st.integers(1, 4),
    experts=st.booleans(),
    quantization=st.sampled_from([None, "int8", "fp8", "int4"]),
)
def test_parts_add_up_and_more_memory_holds_no_fewer_tokens(
    name: str, device: int, tensor: int, stages: int, experts: bool, quantization: str | None
) -> None:
    setting = ReplicaSetting(
        tensor_parallel=tensor,
        pipeline_parallel=stages,
        expert_parallel=experts,
        quantization=quantization,
        max_context_length=4096,
    )
    smaller, larger = planned(name, device * 10**9, setting), planned(name, (device + 20) * 10**9, setting)
    if smaller is None:
        return
    assert larger is not None
    assert larger.cache.num_blocks >= smaller.cache.num_blocks
    for plan in (smaller, larger):
        assert sum(part.quantity.value for part in plan.parts) == int(plan.device_bytes * 0.9)
        assert all(part.quantity.value >= -plan.rank_block_bytes for part in plan.parts)
        assert plan.users(4096).value >= 1
        assert plan.users(1024).value >= plan.users(4096).value


def test_fewer_bits_take_less_memory_and_ranks_share_it() -> None:
    for name in preset_names():
        model = preset(name)
        sizes = [
            sum(weight_bytes(model.spec, Place(), model.forms(quantization=quantization)).values())
            for quantization in (None, "int8", "int4")
        ]
        assert all(more > 1.2 * less for more, less in itertools.pairwise(sizes)), name
        halves = [sum(weight_bytes(model.spec, Place(rank, 2), model.forms()).values()) for rank in range(2)]
        assert sizes[0] <= sum(halves) < 1.01 * sizes[0], name


def test_layers_one_by_one_come_to_the_same_as_layers_that_are_alike() -> None:
    for name in preset_names():
        spec = preset(name).spec
        for place in (Place(), Place(1, 2, expert_parallel=True)):
            forms = preset(name).forms(quantization="int4")
            apart = sum(each.times * forms.num_bytes(each.held) for each in rank_weights(spec, place, by_layer=True))
            assert apart == sum(weight_bytes(spec, place, forms).values()), name


def test_a_model_that_does_not_fit_says_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(ModelTooLargeError, match=r"weights of 141\.1 GB and .* into 72\.0 GB \(80 GB x 0\.9\)"):
        plan_memory(preset("Llama-3.1-70B"), ReplicaSetting(), H100)
    with pytest.raises(ModelTooLargeError, match="one context has up to 131072") as caught:
        plan_memory(preset("Llama-3.1-8B"), ReplicaSetting(), 32 * 10**9)
    lower = ReplicaSetting(max_context_length=caught.value.tokens)
    assert plan_memory(preset("Llama-3.1-8B"), lower, 32 * 10**9).users(caught.value.tokens).value == 1
    with pytest.raises(PlanError, match="28 query heads cannot be divided evenly among 8 ranks"):
        plan_memory(preset("Qwen2.5-7B"), ReplicaSetting(tensor_parallel=8), H100)
    with pytest.raises(PlanError, match="caches float32 or bfloat16"):
        plan_memory(preset("DeepSeek-V3"), ReplicaSetting(kv_cache_dtype="fp8"), 10**13)
    with pytest.raises(PlanError, match="GPUs multiply bfloat16"):
        plan_memory(preset("Qwen3-8B"), ReplicaSetting(dtype="float32"), H100)
    with pytest.raises(PlanError, match="hold no fp8 weights"):
        plan_memory(preset("Qwen3-8B"), ReplicaSetting(kernels="cpu", quantization="fp8"), 10**12)
