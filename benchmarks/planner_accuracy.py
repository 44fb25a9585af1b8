"""How far the planner's device model is off: fitted to steps on H100s, judged on an H200 and under load.

    python -m benchmarks.planner_accuracy              # the tables of docs/internals/planner_accuracy.md
    python -m benchmarks.planner_accuracy --fit 8000   # fits the efficiencies anew and prints them

The measured figures are those of docs/internals/gpu.md; those of other engines are kernels timed one by one on an H200
(AIConfigurator 0.12's tables), without a scheduler. No GPU is needed.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepShape
from kvarn.planner.answer import Layout
from kvarn.planner.capacity import ReplicaCapacity
from kvarn.planner.device_model import DeviceModel
from kvarn.planner.devices import device_table
from kvarn.planner.efficiency import GPU, Efficiency
from kvarn.planner.lengths import Workload
from kvarn.planner.memory import decoder_costs
from kvarn.planner.models import PlannedModel, described, preset
from kvarn.planner.request import SloRequest, TrafficRequest, WeightFormat
from kvarn.planner.sizing import quantization_of, usual_steps
from kvarn.shapes import KvDtype

CONTEXT, PROMPT, ANSWER, BUDGET = 1088, 1024, 128, 8192
ONE_B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Row:
    """A measured time: a step that decodes `batch` sequences, or (batch 0) all prompts of 256 in steps of 8,192."""

    device: str
    shape: str
    weights: WeightFormat
    batch: int
    seconds: float
    kv: KvDtype = "bfloat16"
    by: str = "Kvarn"

    @property
    def name(self) -> str:
        what = f"decode, {self.batch}" if self.batch else "256 prompts of 1,024"
        cache = ", fp8 cache" if self.kv == "fp8" else ""
        weights = "bf16" if self.weights == "plain" else self.weights
        return f"{self.shape} {weights}{cache}, {what}"


def _speeds(device: str, shape: str, weights: WeightFormat, speeds: dict[int, float], by: str = "Kvarn") -> list[Row]:
    return [Row(device, shape, weights, batch, batch / speed, by=by) for batch, speed in speeds.items()]


FITTED = [
    *_speeds("h100", "8B", "plain", {1: 170, 32: 4010, 256: 11958}),
    *_speeds("h100", "8B", "fp8", {1: 248, 32: 5101, 256: 9464}),
    *_speeds("h100", "8B", "int8", {1: 250, 256: 9646}),
    *_speeds("h100", "8B", "int4", {1: 298, 32: 5896, 256: 9337}),
    *_speeds("h100", "0.6B", "plain", {1: 840, 32: 11075, 256: 19102}),
    *_speeds("h100", "1B", "plain", {1: 778, 32: 16566, 256: 44530}),
    Row("h100", "8B", "plain", 32, 32 / 4034, "fp8"),
    Row("h100", "8B", "plain", 256, 256 / 12032, "fp8"),
    Row("h100", "8B", "plain", 0, 6.8),
    Row("h100", "8B", "fp8", 0, 13.0),
    Row("h100", "8B", "int8", 0, 12.4),
    Row("h100", "8B", "int4", 0, 12.6),
    Row("h100", "0.6B", "plain", 0, 1.46),
    Row("h100", "1B", "plain", 0, 1.34),
]
"""Tokens a second and seconds of docs/internals/gpu.md, On H100s."""

JUDGED = [
    *_speeds("h200", "8B", "plain", {1: 219, 8: 1634, 32: 5026, 256: 12227}),
    *_speeds("h200", "0.6B", "plain", {1: 841, 8: 5629, 32: 12272}),
    *_speeds("h200", "1B", "plain", {1: 901, 8: 6430, 32: 20102}),
    Row("h200", "8B", "plain", 0, 9.31),
]
"""On an H200, of the day before: kernels for many rows and attention of many sequences were slower then."""

OTHERS = [
    Row("h200", "8B", weights, batch, milliseconds / 1000, by=by)
    for by, weights, times in (
        ("vLLM 0.24", "plain", (4.86, 6.36, 15.7)),
        ("SGLang 0.5.14", "plain", (4.87, 6.02, 16.5)),
        ("TensorRT-LLM 1.3rc20", "plain", (5.02, 6.82, 15.4)),
        ("vLLM 0.24", "fp8", (3.78, 5.40, 14.7)),
        ("SGLang 0.5.14", "fp8", (3.51, 4.78, 15.0)),
        ("TensorRT-LLM 1.3rc20", "fp8", (4.46, 6.35, 14.6)),
    )
    for batch, milliseconds in zip((1, 32, 256), times, strict=True)
]
LOAD = ((7.1, (47, 111, 149), 6.5), (11.4, (57, 110, 143), 7.3), (13.5, (61, 120, 143), 7.6))
"""Requests a second; TTFT at p50, p95 and p99, and the median time between tokens, in ms: 8B in bfloat16 on an H100."""


def model_of(shape: str) -> PlannedModel:
    """The model of a shape."""
    if shape == "1B":
        return described(ONE_B, name="1B")
    return preset({"8B": "meta-llama/Llama-3.1-8B", "0.6B": "Qwen/Qwen3-0.6B"}[shape])


def on_device(row: Row, efficiency: Efficiency | None = None) -> DeviceModel:
    """The device model of a row."""
    key, device = device_table().find(row.device)
    model = model_of(row.shape)
    costs = decoder_costs(model, model.forms("gpu", "bfloat16", quantization_of(row.weights)), row.kv)
    return DeviceModel(device, Layout(device=key, weights=row.weights, kv_dtype=row.kv), costs, model.spec, efficiency)


def predicted(row: Row, model: DeviceModel) -> float:
    """Seconds of a row by the device model."""
    if row.batch:
        return model.seconds(StepShape(decode_rows=row.batch, decode_context=row.batch * CONTEXT))
    step = StepShape()
    for _ in range(BUDGET // PROMPT):
        step.add(0, PROMPT)
    return 256 * PROMPT / BUDGET * model.seconds(step)


def errors(rows: Iterable[Row]) -> Iterator[tuple[Row, float, float]]:
    """Rows with the predicted seconds and their relative error."""
    for row in rows:
        seconds = predicted(row, on_device(row))
        yield row, seconds, seconds / row.seconds - 1


def fit(rounds: int, seed: int = 1) -> Efficiency:
    """Efficiencies with the least squared logarithmic error on `FITTED`, by random steps of one figure at a time.

    The bandwidth that bfloat16 weights reach is not fitted: it is the read rate that was measured.
    """
    models = [(row, on_device(row)) for row in FITTED]

    def loss(efficiency: Efficiency) -> float:
        each = (predicted(row, replace(model, given=efficiency)) / row.seconds for row, model in models)
        return sum(math.log(ratio) ** 2 for ratio in each)

    generator, best, width = random.Random(seed), GPU, 0.1
    least = loss(best)
    for index in range(rounds):
        tried = _changed(best, generator, width)
        if (found := loss(tried)) < least:
            best, least = tried, found
        if index % max(1, rounds // 4) == 0 and index:
            width /= 2
    return best


def _changed(efficiency: Efficiency, generator: random.Random, width: float) -> Efficiency:
    factor = math.exp(generator.gauss(0, width))
    name = generator.choice(("layer_s", "prompt_token_s", "read", "products", "products", "cache"))
    value = getattr(efficiency, name)
    if not isinstance(value, dict):
        return replace(efficiency, **{name: value * factor})
    key = generator.choice([key for key in value if (name, key) != ("read", "plain")])
    return replace(efficiency, **{name: value | {key: min(0.95, value[key] * factor)}})


def under_load(rate: float, percentile: float) -> tuple[float, float]:
    """TTFT at a percentile and mean TPOT, in ms, of 8B in bfloat16 on an H100."""
    model = on_device(FITTED[0])
    traffic = TrafficRequest(rate_rps=rate, input_tokens=PROMPT, output_tokens=ANSWER, length_variation=0)
    workload = Workload.of(traffic, 0.0)
    capacity = ReplicaCapacity(
        times=model.step_times(list(usual_steps(workload, 256))),
        config=EngineConfig(token_budget=BUDGET, tpot_target_ms=1e9),
        workload=workload,
        slo=SloRequest(ttft_s=1e3, tpot_s=1e3, percentile=percentile),
        kv_tokens=4e5,
        steps_ahead=1,
    )
    point = capacity.at(rate, 1)
    return 1000 * point.ttft_s, 1000 * capacity.times.decode_s(point.rows, point.rows * workload.context)


def _table(rows: list[Row]) -> None:
    print("| by | step | measured, ms | planned, ms | error |\n|---|---|---|---|---|")
    found = list(errors(rows))
    for row, seconds, error in found:
        print(f"| {row.by} | {row.name} | {1000 * row.seconds:,.2f} | {1000 * seconds:,.2f} | {error:+.0%} |")
    sizes = sorted(abs(error) for _, _, error in found)
    print(f"\nMedian {sizes[len(sizes) // 2]:.0%}, largest {sizes[-1]:.0%}.\n")


def main() -> None:
    """Print the tables, or a fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=int, default=0, metavar="ROUNDS", help="fit the efficiencies anew")
    rounds = parser.parse_args().fit
    if rounds:
        print(fit(rounds))
        return
    for title, rows in (("Fitted: H100", FITTED), ("Judged: H200", JUDGED), ("Other engines: H200", OTHERS)):
        print(f"### {title}\n")
        _table(rows)
    print("### Under load: H100\n\n| requests/s | what | measured, ms | planned, ms | error |\n|---|---|---|---|---|")
    for rate, quantiles, between in LOAD:
        for percentile, measured in zip((0.5, 0.95, 0.99), quantiles, strict=True):
            ttft, tpot = under_load(rate, percentile)
            print(f"| {rate} | TTFT p{100 * percentile:g} | {measured} | {ttft:.0f} | {ttft / measured - 1:+.0%} |")
        print(f"| {rate} | step without prompts | {between} | {tpot:.1f} | {tpot / between - 1:+.0%} |")


if __name__ == "__main__":
    main()
