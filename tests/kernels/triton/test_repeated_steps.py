"""Steps that a device repeats: the tokens and the bits of an executor that computes each one anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from guesses import KnownAnswers
from kv_connectors import DictConnector
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import load_adapter
from kvarn.wire.messages import PositionLogprobs, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from profiles import sample, thorough
from recorded_steps import RecordedSteps
from tiny_adapters import make_adapter
from tiny_checkpoints import make_decoder

SIZES: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
Answers = dict[str, tuple[list[int], list[PositionLogprobs]]]


class Repeating(AsyncExecutor):
    """As on a GPU that captures steps."""

    def __init__(self, model: Decoder, **options: Any) -> None:
        super().__init__(model, fill_up=True, **options)
        self.graphs = self.runner.graphs = RecordedSteps(model.kernels.device.torch_device)

    @property
    def repeated(self) -> Counter[str]:
        """Steps that were repeated, by what they compute."""
        found: Counter[str] = Counter()
        for (_, kind), count in self.graphs.repeated.items():
            found[kind] += count
        return found


def load(path: Path, kernels: str = "triton") -> Decoder:
    model = load_model(path, dtype="float32", kernels=kernels)
    assert isinstance(model, Decoder)
    return model


def run(executor: InProcessExecutor, rounds: list[list[Submit]], **options: Any) -> tuple[Answers, EngineCore]:
    """Each round is answered before the next one comes."""
    ticks = iter(range(10**6))
    config = EngineConfig(max_num_seqs=6, tpot_target_ms=1e9)
    engine = EngineCore(EngineParts(executor, config, **options), lambda: next(ticks) * 0.01)
    answers: Answers = {}
    for messages in rounds:
        for message in messages:
            engine.add(message)
        while engine.has_work():
            for delta in engine.step().deltas:
                tokens, logprobs = answers.setdefault(delta.request_id, ([], []))
                tokens += delta.token_ids
                logprobs += delta.logprobs or []
    return answers, engine


def ask(name: str, prompt: list[int], max_tokens: int = 7, adapter: str = "", **sampling: Any) -> Submit:
    params = SamplingParams(**{"seed": len(prompt), "temperature": 0.0, "max_tokens": max_tokens, **sampling})
    return Submit(request_id=name, prompt_token_ids=prompt, sampling=params, adapter=adapter)


@pytest.mark.parametrize("family", [sample("qwen3"), thorough("deepseek-v3")])
def test_steps_of_all_kinds_are_repeated_with_the_same_bits(tmp_path: Path, family: str) -> None:
    """Rows that are drawn on the device, rows that are not, rows with guesses, and blocks that are stored."""
    make_decoder(family, tmp_path, **(SIZES if family == "qwen3" else {"num_hidden_layers": 1}))
    model = load(tmp_path)
    plain = [ask("greedy", [5, 6], 10), ask("sampled", [7], 10, temperature=0.9, top_p=0.8)]
    others = [ask("logprobs", [8, 9], 6, logprobs=2), ask("penalised", [10], 6, repetition_penalty=1.4)]
    rounds, sizes = [plain + others], {"num_blocks": 24, "max_num_seqs": 6}
    want, _ = run(InProcessExecutor(model, **sizes), rounds)
    connector = DictConnector()
    executor = Repeating(model, connector=connector, **sizes)
    assert run(executor, rounds, connector=connector)[0] == want
    assert executor.repeated["drawn"] > 1 and executor.repeated["hidden"] > 1
    guessing = Repeating(model, **sizes)
    speculation = SpeculationConfig(adaptive=False)
    found, engine = run(
        guessing,
        rounds,
        proposer=KnownAnswers({(key, 0): tokens for key, (tokens, _) in want.items()}, length=1, wrong=4),
        speculation=speculation,
    )
    assert found == want
    assert engine.stats().speculation.accepted_tokens_total > 6
    assert guessing.repeated["hidden"] > 0


def test_adapters_come_and_go_between_steps_that_are_repeated(tmp_path: Path) -> None:
    """Larger ones make the kernels' tables anew, and blocks of adapters become others'."""
    oracle = make_decoder("qwen3", tmp_path / "model", **SIZES)
    names = ("one", "two", "three")
    for seed, name in enumerate(names):
        make_adapter(oracle, tmp_path / name, seed=seed, r=(4, 17, 40)[seed], target_modules=["q_proj", "down_proj"])
    rounds = [
        [ask(f"{number}.{place}", [5, 6 + place], 4, name) for place, name in enumerate(asked)]
        for number, asked in enumerate((["one", ""], ["two", "one"], ["three", ""], ["one", "one"]))
    ]
    found, executors = [], []
    for make, kernels in ((InProcessExecutor, "torch"), (Repeating, "triton")):
        model = load(tmp_path / "model", kernels)
        adapters = {name: load_adapter(tmp_path / name, model).packed for name in names}
        memory = model.new_adapter_memory(model.new_kv_cache(1))
        num_blocks = 4 + max(memory.num_blocks(each) for each in adapters.values())
        executors.append(executor := make(model, num_blocks=num_blocks, max_num_seqs=4))
        for name, adapter in adapters.items():
            executor.adapters.add(name, adapter)
        answers, engine = run(executor, rounds, adapters=executor.adapters)
        found.append(answers)
        assert engine.scheduler.memory.adapters.num_evictions > 1
        executor.shutdown()
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens, _ in found[0].values()}) > 4, "adapters change tokens"
    repeated = executors[1].graphs.repeated
    assert len({adapters for ((*_, adapters), _), count in repeated.items() if count}) > 2


def test_recurrent_states_are_taken_on_and_copied_by_steps_that_are_repeated(tmp_path: Path) -> None:
    """Answers pass the end of a block, where a snapshot is taken, and the second round begins with these."""
    make_decoder(
        "qwen3-next",
        tmp_path,
        **SIZES | {"num_hidden_layers": 2, "mlp_only_layers": [0, 1]},
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=1,
        linear_num_value_heads=2,
    )
    first = [ask("one", list(range(5, 18))), ask("two", list(range(30, 43)), temperature=0.9)]
    sizes: dict[str, Any] = {"num_blocks": 24, "max_num_seqs": 6, "num_snapshots": 6}
    answers, _ = run(InProcessExecutor(load(tmp_path, "torch"), **sizes), [first], num_snapshots=6)
    second = [
        ask(f"{each.request_id} again", [*each.prompt_token_ids, *answers[each.request_id][0], 9], 5) for each in first
    ]
    want, _ = run(InProcessExecutor(load(tmp_path, "torch"), **sizes), [first, second], num_snapshots=6)
    executor = Repeating(load(tmp_path), **sizes)
    found, engine = run(executor, [first, second], num_snapshots=6)
    assert found == want
    assert engine.stats().cached_tokens_total >= 2 * 16
    assert executor.repeated["greedy"] + executor.repeated["drawn"] > 4


def test_sequences_that_begin_alike_are_read_together(tmp_path: Path) -> None:
    """A second request comes while the first one is answered; their steps are repeated, and others in between."""
    make_decoder("qwen3", tmp_path, max_position_embeddings=600, **SIZES)
    prompt = [5 + index * 7 % 180 for index in range(258)]
    rounds = [[ask("first", prompt, 2)], [ask("one", prompt, 4), ask("two", [*prompt, 9], 4)]]
    sizes = {"num_blocks": 60, "max_num_seqs": 4}
    want, _ = run(InProcessExecutor(load(tmp_path, "torch"), **sizes), rounds)
    executor = Repeating(load(tmp_path), **sizes)
    assert run(executor, rounds)[0] == want
    assert executor.repeated["greedy"] > 1
    assert any(launched["cascade.attend"] for launched in executor.graphs.recorder.launched)
