"""The engines under test. Each module knows one of them; nothing else in the suite knows any."""

from __future__ import annotations

from benchmarks.peers.engines.base import Engine
from benchmarks.peers.engines.hf_transformers import Transformers
from benchmarks.peers.engines.kvarn_serve import Kvarn
from benchmarks.peers.engines.llama_cpp import LlamaCpp
from benchmarks.peers.engines.openvino_genai import OpenVino
from benchmarks.peers.engines.vllm_cpu import Vllm
from benchmarks.peers.workshop import multiplies_bfloat16

KVARN = "kvarn"
"""The engine that all others are the peers of."""

VLLM_F32 = Vllm(name="vllm-f32", title="vLLM, float32", dtype="float32")
"""vLLM with activations, and in the bf16 class weights, widened: what one would choose for prompts on a processor that
does not multiply bfloat16, where torch's products of it are slow."""

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Kvarn(), Vllm(), VLLM_F32, LlamaCpp(), OpenVino(), Transformers())
}


def default_engines(flags: frozenset[str]) -> list[str]:
    """All that make sense on a processor with these instruction sets."""
    return [name for name in ENGINES if name != VLLM_F32.name or not multiplies_bfloat16(flags)]
