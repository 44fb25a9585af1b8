"""What grammars cost and gain: masks of a large vocabulary, and answers with and without fast-forward.

    python -m benchmarks.structured_output
    python -m benchmarks.structured_output --smoke

* masks: a synthetic tokenizer of `--vocab` tokens. `wait` is what a step waits for masks that were begun when it was
  planned, had its forward pass taken no time: the most they can cost. `apply` is what the sampler takes longer with
  them. Both for 1 and for `--rows` rows in the middle of JSON, in microseconds, as medians.
* answers: the demo model writes JSON of a schema with many keys, one request at a time; forced tokens are computed
  together (`fast-forward`) or drawn one by one, in turn. Tokens are equal; so is the time of requests without a grammar
  (`plain`), with and without grammars in the engine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import kvarn
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import NewSequence
from kvarn.grammar.masks import GrammarMask, GrammarMasks
from kvarn.grammar.text import from_json_schema
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.kernels.dispatch import kernels_for
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Grammar, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.sampler import Sampler
from kvarn.worker.slots import SlotTable

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
END = 256
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"


def synthetic_tokenizer(vocab_size: int) -> str:
    """A byte-level tokenizer of random words, as tokenizer.json holds it; token 256 ends answers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    vocabulary: dict[str, int] = {shown[byte]: byte for byte in range(256)}
    vocabulary["<|end|>"] = END
    merges: list[list[str]] = []
    for text in ('{"', '":', '",', '"}', ' "', ', "', ": "):
        pieces = [shown[byte] for byte in text.encode()]
        for end in range(2, len(pieces) + 1):
            if "".join(pieces[:end]) not in vocabulary:
                merges.append(["".join(pieces[: end - 1]), pieces[end - 1]])
                vocabulary["".join(pieces[:end])] = len(vocabulary)
    chance = random.Random(0)
    words = [*_LETTERS * 3, *_LETTERS.upper(), *"0123456789", *shown[32] * 6]
    while len(vocabulary) < vocab_size:
        first, second = chance.choice(words), chance.choice(words)
        word = first + second
        if shown[32] not in second and len(word) <= 14 and word not in vocabulary:
            vocabulary[word] = len(vocabulary)
            merges.append([first, second])
            words.append(word)
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": END, "content": "<|end|>", "special": True, **flags}],
            "pre_tokenizer": split,
            "decoder": split,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        }
    )


def schema(keys: int, longest: int = 8) -> dict[str, Any]:
    """An object of short texts, numbers and choices under long names."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": longest},
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"enum": ["yes", "no"]},
    ]
    names = ("shipping_address_line", "customer_reference_number", "preferred_delivery_window", "contact_permission")
    properties = {f"{names[place % 4]}_{place}": kinds[place % 3] for place in range(keys)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def microseconds(work: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> float:
    """Median time of some work."""
    times: list[float] = []
    for _ in range(rounds):
        before()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def measure_masks(vocab_size: int, rows: int, rounds: int, console: Console) -> None:
    """Wait for masks and apply them, at places all over an answer."""
    tokenizer, began = synthetic_tokenizer(vocab_size), time.perf_counter()
    vocabulary = Vocabulary(tokenizer, vocab_size, [END])
    console.print(f"vocabulary of {vocab_size} tokens read in {time.perf_counter() - began:.2f} s")
    masks, text = GrammarMasks(vocabulary, max(1, torch.get_num_threads() // 2)), from_json_schema(schema(24, 40))
    message = Submit(
        request_id="r",
        prompt_token_ids=[1],
        sampling=SamplingParams(seed=0, max_tokens=512, stop_token_ids=[END]),
        grammar=Grammar(text=text),
    )
    answers = [_answer(masks, message, vocab_size, seed) for seed in range(rows)]
    slots = SlotTable(rows, 1024, vocab_size)
    for slot in range(rows):
        slots.admit(NewSequence(slot, message.sampling, slot, [1], []))
    logits, sampler = torch.randn(rows, vocab_size), Sampler(slots, kernels_for().operations)
    for count in (1, rows):
        own = [_ready(masks, message) for _ in range(count)]
        places = [0]

        def plan(own: list[GrammarMask] = own, places: list[int] = places) -> list[Any]:
            places[0] += 1
            packed = []
            for mask, answer in zip(own, answers, strict=False):
                outputs = answer[: places[0] % len(answer)]
                forced = mask.forced(0, outputs)
                packed.append(mask.pack(0, outputs + forced, []))
            return [each[0] for each in packed]

        def restart(own: list[GrammarMask] = own, places: list[int] = places) -> None:
            if (places[0] + 1) % min(map(len, answers)) == 0:
                places[0] = 0
                own[:] = [_ready(masks, message) for _ in own]

        wait = microseconds(plan, rounds, restart)
        held = [bytes(each) for each in plan()]
        index, masked = np.arange(count), dict(enumerate(held))
        free = microseconds(lambda: sampler.sample(logits[:count].clone(), index), rounds)  # noqa: B023
        kept = microseconds(lambda: sampler.sample(logits[:count].clone(), index, masked), rounds)  # noqa: B023
        console.print(
            f"masks: {count:3} rows  wait {wait:7.0f} us  apply {kept - free:7.0f} us  (sampler {free:.0f} us)"
        )
    masks.shutdown()


def _ready(masks: GrammarMasks, message: Submit) -> GrammarMask:
    mask = masks(message)
    assert mask is not None
    while not mask.ready:
        time.sleep(0.001)
    return mask


def _answer(masks: GrammarMasks, message: Submit, vocab_size: int, seed: int) -> list[int]:
    """An answer drawn at random of what the masks allow."""
    mask, chance, outputs = _ready(masks, message), random.Random(seed), list[int]()
    while len(outputs) < 400:
        forced = mask.forced(0, outputs)
        packed = np.frombuffer(mask.pack(0, outputs + forced, [])[0], dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(packed, count=vocab_size, bitorder="little"))
        token = int(chance.choice(allowed))
        outputs += forced
        if token == END:
            break
        outputs.append(token)
    return outputs


class _OneByOne:
    """A mask that is asked for each token."""

    def __init__(self, inner: GrammarMask) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forced(self, _index: int, _outputs: list[int]) -> list[int]:
        """None: each is drawn."""
        return []


def measure_answers(model: Decoder, requests: int, rounds: int, console: Console) -> None:
    """Answers of one request at a time, in turn with and without fast-forward, and with no grammar."""
    masks = GrammarMasks(Vocabulary.load(DEMO, DEMO, "auto", model.spec.vocab_size))
    grammar = Grammar(text=from_json_schema(schema(12)))

    def one_by_one(message: Submit) -> Any:
        mask = masks(message)
        return None if mask is None else _OneByOne(mask)

    engines = {
        "fast-forward": (_engine(model, masks), grammar),
        "one by one": (_engine(model, one_by_one), grammar),
        "plain, grammars in the engine": (_engine(model, masks), None),
        "plain, none in the engine": (_engine(model, None), None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[list[int]]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, (engine, own) in engines.items():
            began, told = time.perf_counter(), [_run(engine, own, seed) for seed in range(requests)]
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
            answers[name] = told
    assert answers["fast-forward"] == answers["one by one"], "fast-forward changed tokens"
    assert len({str(each) for name, each in answers.items() if name.startswith("plain")}) == 1
    for name, times in seconds.items():
        tokens = sum(map(len, answers[name]))
        console.print(f"answers: {name:30} {tokens / statistics.median(times):8.0f} tokens/s")
    fast, slow = (statistics.median(seconds[name]) for name in ("fast-forward", "one by one"))
    kept, free = (statistics.median(times) for name, times in seconds.items() if name.startswith("plain"))
    console.print(f"fast-forward: {slow / fast:.2f}x; plain requests with grammars in the engine: {free / kept:.3f}x")
    masks.shutdown()


def _engine(model: Decoder, masks: Any) -> EngineCore:
    executor = InProcessExecutor(model, num_blocks=256, max_num_seqs=8)
    return EngineCore(
        EngineParts(executor, EngineConfig(max_num_seqs=8, prefix_cache=False), masks=masks), time.monotonic
    )


def _run(engine: EngineCore, grammar: Grammar | None, seed: int) -> list[int]:
    sampling = SamplingParams(seed=seed, temperature=0.8, max_tokens=400 if grammar else 100, stop_token_ids=[2, 0])
    prompt = [1, *range(300, 332)]
    engine.add(Submit(request_id=f"r{seed}", prompt_token_ids=prompt, sampling=sampling, grammar=grammar))
    tokens: list[int] = []
    while engine.has_work():
        for delta in engine.step().deltas:
            tokens += delta.token_ids
    return tokens


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--smoke", action="store_true", help="a small vocabulary, few rounds")
    given = parser.parse_args()
    if given.smoke:
        given.vocab, given.rows, given.rounds, given.requests = 2_000, 2, 2, 1
    console = Console(width=120, highlight=False)
    measure_masks(given.vocab, given.rows, 40 * given.rounds, console)
    model = load_model(DEMO)
    assert isinstance(model, Decoder)
    torch.set_num_threads(1)  # as the engine runs so small a model
    measure_answers(model, given.requests, given.rounds, console)


if __name__ == "__main__":
    main()
