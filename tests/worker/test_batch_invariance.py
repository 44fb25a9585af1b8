"""Bits of an answer's log-probabilities, and of a text's vector, do not depend on the batch, for every family.

The compiled kernels run on every instruction set of this machine; one family on every set there is, in all types. Sizes
are odd on purpose: torch's vectorised functions round the numbers past the last whole register differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

from kvarn.kernels.cpu._native import emulated_instruction_sets, usable_instruction_sets
from kvarn.models import Decoder, Encoder, load_model
from kvarn.specs.families.table import FAMILIES
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.encoder_runner import EncoderRunner
from profiles import thorough
from tiny_checkpoints import DECODERS, ENCODERS, make_decoder, make_encoder

MAX_TOKENS = 14
NEVER_CUT = 512
"""A token budget in which all prompts here fit at once."""

Checkpoints = Callable[[str], Path]
Logprobs = dict[tuple[str, int], tuple[list[int], list[Any], list[Any] | None]]


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


USABLE = usable_instruction_sets()
IN_TURN: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"quantization": "int8"}]
"""Types of weights of which the short profile gives each family one."""
FAMILY_CASES: list[Any] = [
    case
    for number, family in enumerate(DECODERS)
    for case in (
        (family, USABLE[0], IN_TURN[number % 2]),
        thorough(family, USABLE[0], IN_TURN[(number + 1) % 2]),
        thorough(family, USABLE[0], {"dtype": "float32"}),
        *(thorough(family, name, {"dtype": "bfloat16"}) for name in USABLE[1:]),
    )
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """The directory of a family's random checkpoint."""

    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        (make_decoder if name in DECODERS else make_encoder)(name, path)
        return path

    return make


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "n": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.2, "top_p": 0.95, "presence_penalty": 0.7, "repetition_penalty": 1.1},
    {"temperature": 0.9, "min_p": 0.02, "bad_words": [[5], [6, 7]]},
    {"temperature": 1.0, "top_k": 40, "stop_token_ids": [1, 2, 3], "min_tokens": MAX_TOKENS},
]


def make_requests() -> list[Submit]:
    """Requests of all kinds; every third with the log-probabilities of its prompt."""
    generator = torch.Generator().manual_seed(11)
    requests = []
    for index, length in enumerate([3, 61, 18, 34, 7, 49]):
        prompt = torch.randint(3, 199, (length,), generator=generator).tolist()
        sampling = SamplingParams(
            seed=index, max_tokens=MAX_TOKENS, logprobs=3, prompt_logprobs=None if index % 3 else 1, **KINDS[index]
        )
        requests.append(Submit(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling))
    return requests


def logprobs_of(answers: dict[tuple[str, int], Any]) -> Logprobs:
    return {key: (answer.token_ids, answer.logprobs, answer.prompt_logprobs) for key, answer in answers.items()}


@pytest.mark.parametrize(("family", "instruction_set", "weights"), FAMILY_CASES, ids=str)
def test_log_probabilities_are_batch_invariant_for_every_family(
    stack, family, instruction_set, weights, checkpoints, monkeypatch
):
    monkeypatch.setenv("KVARN_ISA", instruction_set)
    check_company(stack, load_model(checkpoints(family), kernels="cpu", **weights))


@pytest.mark.parametrize("kv_cache_dtype", [thorough("bfloat16"), "int8"])
@pytest.mark.parametrize(
    "weights", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
@pytest.mark.parametrize("instruction_set", [*USABLE, *emulated_instruction_sets()])
def test_log_probabilities_are_batch_invariant_for_types_on_every_instruction_set(
    stack, instruction_set, weights, kv_cache_dtype, checkpoints, monkeypatch
):
    """The emulated ones too, which take the decisions of processors that are not here."""
    monkeypatch.setenv("KVARN_ISA", instruction_set)
    check_company(stack, load_model(checkpoints("qwen3"), kernels="cpu", kv_cache_dtype=kv_cache_dtype, **weights))


def check_company(stack: Any, model: Any) -> None:
    """Requests alone, together, after a prefix hit, cut into chunks and preempted have the same log-probabilities."""
    assert isinstance(model, Decoder)
    requests = make_requests()
    alone: Logprobs = {}
    for request in requests:
        alone |= logprobs_of(stack(model, token_budget=NEVER_CUT).generate([request]))
    assert all(len(logprobs) == MAX_TOKENS for _, logprobs, _ in alone.values())

    batch = stack(model, token_budget=NEVER_CUT)
    assert logprobs_of(batch.generate(requests)) == alone, "in a batch"
    assert logprobs_of(batch.generate(requests)) == alone, "after a prefix hit"
    assert batch.engine.stats().cached_tokens_total > 0
    assert logprobs_of(stack(model, token_budget=13).generate(requests)) == alone, "with prompts cut into chunks"
    crowded = stack(model, num_blocks=16, token_budget=NEVER_CUT)  # one sequence of the full length, and no more
    assert logprobs_of(crowded.generate(requests)) == alone, "after preemption"
    assert crowded.engine.stats().preemptions_total > 0


def test_every_decoder_architecture_is_tested() -> None:
    """Names as config.json has them; the text model of Gemma 3 is the only one whose class is named otherwise."""
    assert {f"{prefix.removesuffix('Text')}ForCausalLM" for prefix, _ in DECODERS.values()} == set(FAMILIES)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("instruction_set", [USABLE[0], *map(thorough, USABLE[1:])])
def test_vectors_are_batch_invariant_for_every_encoder(family, instruction_set, checkpoints, monkeypatch):
    """Some texts are equally long: torch's attention, computed for such together by two threads, has other bits."""
    monkeypatch.setenv("KVARN_ISA", instruction_set)
    model = load_model(checkpoints(family), dtype="float32", kernels="cpu")
    assert isinstance(model, Encoder)
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(20, 30, (16,), generator=generator).tolist()
    texts = [torch.randint(5, 101, (length,), generator=generator).tolist() for length in lengths]
    alone = [EncoderRunner(model, 4096).embed([text])[0] for text in texts]
    assert EncoderRunner(model, 4096).embed(texts) == alone
    assert EncoderRunner(model, 90).embed(texts[::-1]) == alone[::-1]
