"""Speculation against none: engines on one loaded model take turns at the same requests, in one run.

    python -m benchmarks.speculation --out FOLDER                                 # the demo model, its draft, its head
    python -m benchmarks.speculation --model FOLDER --streams 1,8,32 --rounds 3   # another: random prompts, under load

One stream: copying values into JSON, of many records into one schema (`records`) and of fresh sentences that each ask
for other fields (`extraction`); an answer that repeats a text of the conversation (`edit`); the golden set. Then loads
of 1 to 64 streams of golden prompts, half of them drawn at temperature 0.7. Each round has a tenant of its own, so that
what n-grams find in earlier answers is of the same round. Tokens are compared: they must be the same.
The figure is the time without speculation over the time with
it, the median over rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import kvarn
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.step_time import StepTimeModel
from kvarn.models import Decoder, load_model
from kvarn.models.eagle import load_eagle_head
from kvarn.replica.server.cpu import kernel_threads
from kvarn.replica.server.step_time_prior import expected_steps, product_speeds
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.proposers.draft import DraftProposer
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.proposers.ngram import NgramProposer

ASSETS = Path(kvarn.__file__).parent / "assets"
END = 2
"""Token that ends an answer of the demo model."""
BLOCKS = 4096


@dataclass(frozen=True)
class Case:
    """Requests that are sent together."""

    name: str
    streams: int
    max_tokens: int
    make_prompts: Callable[[random.Random], list[list[int]]]
    temperature: float = 0.0
    """Of every second request."""
    stop: tuple[int, ...] = (END,)


class Arm:
    """One engine, and what it took for each case and round."""

    def __init__(
        self, name: str, model: Decoder, proposer: Proposer | None, streams: int, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self._clock = clock
        self.seconds: dict[tuple[str, int], list[float]] = {}
        config = SpeculationConfig()
        dtype = model.kernels.operations.activation_dtype(model.dtype)
        expected = expected_steps(
            model.costs, product_speeds(model.input_products, dtype, model.kernels.device.torch_device)
        )
        self._engine = EngineCore(
            EngineParts(
                InProcessExecutor(
                    model,
                    num_blocks=BLOCKS,
                    max_num_seqs=streams,
                    eagle=proposer if isinstance(proposer, EagleProposer) else None,
                ),
                EngineConfig(max_num_seqs=streams),
                step_time=StepTimeModel(expected=expected),
                proposer=proposer,
                speculation=config,
            ),
            time.monotonic,
        )

    def run(self, case: Case, prompts: Sequence[list[int]], turn: str) -> dict[str, list[int]]:
        """Answer all prompts, as many at once as the case has streams."""
        waiting = [
            Submit(
                request_id=f"{turn}-{number}",
                tenant=turn,
                prompt_token_ids=prompt,
                sampling=SamplingParams(
                    seed=number,
                    temperature=case.temperature * (number % 2),
                    max_tokens=case.max_tokens,
                    stop_token_ids=list(case.stop),
                ),
            )
            for number, prompt in enumerate(prompts)
        ][::-1]
        answers: dict[str, list[int]] = {message.request_id: [] for message in waiting}
        running = 0
        began = self._clock()
        while waiting or running:
            while waiting and running < case.streams:
                self._engine.add(waiting.pop())
                running += 1
            for delta in self._engine.step().deltas:
                answers[delta.request_id] += delta.token_ids
                running -= delta.finish_reason is not None
        self.seconds.setdefault((case.name, case.streams), []).append(self._clock() - began)
        return answers

    def ratios(self, case: Case, without: Arm) -> list[float]:
        """Of each round: the time without speculation over this one's."""
        key = (case.name, case.streams)
        return [off / on for off, on in zip(without.seconds[key], self.seconds[key], strict=True)]

    def acceptance(self) -> str:
        """Proposals so far, and the share that was right."""
        stats = self._engine.stats()
        proposed = stats.speculation.draft_tokens_total
        return f"{proposed} proposals, {stats.speculation.accepted_tokens_total / max(1, proposed):.0%} right"


def demo_cases(streams: Sequence[int], smoke: bool) -> list[Case]:
    """Of the demo model."""
    from recipes.demo import extraction
    from recipes.demo.chat import Message, Sample, assistant, render, user
    from recipes.demo.facts import ESSAYS
    from recipes.demo.words import CITIES, FIRST_NAMES
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ASSETS / "kvarn-demo/tokenizer.json"))
    golden = [json.loads(line) for line in (ASSETS / "golden.jsonl").read_text().splitlines()]

    def encode(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        sample = Sample("", tuple(messages), tuple(tools or ()))
        found: list[int] = tokenizer.encode(render(sample, sample.messages, True), add_special_tokens=False).ids
        return found

    def extract(rng: random.Random) -> list[list[int]]:
        return [encode(extraction.sample(rng).messages[:-1]) for _ in range(4 if smoke else 60)]

    def records(rng: random.Random) -> list[list[int]]:
        fields = ("name", "email", "city")
        found: list[list[int]] = []
        request, sentence = rng.choice(extraction.REQUESTS), rng.choice(extraction.SENTENCES[fields])
        for _ in range(4 if smoke else 60):
            name, city = rng.choice(FIRST_NAMES), rng.choice(CITIES)
            email = extraction.draw_email(rng, name)
            record = sentence.format(name=name, email=email, city=city)
            asked = request.format(fields=extraction.join_words(fields), sentence=record)
            found.append(encode([user(asked)]))
        return found

    def edit(rng: random.Random) -> list[list[int]]:
        essays = rng.sample(ESSAYS, 2 if smoke else len(ESSAYS))
        asked = [user(rng.choice(essay.questions)) for essay in essays]
        return [
            encode([question, assistant(essay.answer), question]) for question, essay in zip(asked, essays, strict=True)
        ]

    def gold(count: int) -> Callable[[random.Random], list[list[int]]]:
        return lambda rng: [encode(each["messages"], each.get("tools")) for each in rng.sample(golden, count)]

    return [
        Case("extraction", 1, 80, extract),
        Case("records", 1, 80, records),
        Case("edit", 1, 200, edit),
        Case("golden", 1, 200, gold(6 if smoke else 100)),
        *(Case("load", each, 200, gold(8 if smoke else max(48, min(len(golden), 5 * each))), 0.7) for each in streams),
    ]


def random_cases(streams: Sequence[int], vocab_size: int, smoke: bool) -> list[Case]:
    """Prompts of random tokens, answers drawn at temperature 1: hardly anything can be guessed."""

    def prompts(count: int) -> Callable[[random.Random], list[list[int]]]:
        return lambda rng: [[rng.randrange(vocab_size) for _ in range(64)] for _ in range(count)]

    return [Case("load", each, 8 if smoke else 48, prompts(each if each > 1 else 3), 1.0, stop=()) for each in streams]


def measure(arms: Sequence[Arm], cases: Sequence[Case], rounds: int) -> None:
    """Let the arms take turns, each round beginning with another one. The first round of a case only warms up.

    Raises:
        SystemExit: An arm answered with other tokens.
    """
    for case in cases:
        for number in range(rounds + 1):
            prompts = case.make_prompts(random.Random(f"{case.name} {case.streams} {number}"))
            turn = f"{case.name}-{case.streams}-{number}"
            order = [*arms[number % len(arms) :], *arms[: number % len(arms)]]
            answers = [arm.run(case, prompts, turn) for arm in order]
            if any(each != answers[0] for each in answers[1:]):
                raise SystemExit(f"{turn}: the tokens are not the same")
        for arm in arms:
            del arm.seconds[case.name, case.streams][0]


def main() -> None:
    """Print a row for each case; write figures where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="a checkpoint; default: the demo model with its draft model and its head"
    )
    parser.add_argument("--streams", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for speculation.json")
    parser.add_argument(
        "--processor-time", action="store_true", help="of the engine's thread: for one kernel thread and a busy machine"
    )
    parser.add_argument("--methods", default="ngram,draft_model,eagle3")
    parser.add_argument("--smoke", action="store_true", help="few and short requests")
    arguments = parser.parse_args()
    streams = [int(each) for each in arguments.streams.split(",")]
    most = max(streams)
    model = load_model(arguments.model or ASSETS / "kvarn-demo")
    assert isinstance(model, Decoder)
    torch.set_num_threads(kernel_threads(model.layer_bytes))
    clock = time.thread_time if arguments.processor_time else time.perf_counter
    arms = [Arm("off", model, None, most, clock), Arm("ngram", model, NgramProposer(), most, clock)]
    if arguments.model is None:
        draft = load_model(ASSETS / "kvarn-demo-draft")
        assert isinstance(draft, Decoder)
        proposer = DraftProposer(draft, num_blocks=BLOCKS, vocab_size=model.spec.vocab_size)
        proposer.warm_up()
        arms.append(Arm("draft_model", model, proposer, most, clock))
        head = EagleProposer(load_eagle_head(ASSETS / "kvarn-demo-eagle3", model), num_blocks=BLOCKS, max_num_seqs=most)
        head.warm_up()
        arms.append(Arm("eagle3", model, head, most, clock))
        cases = demo_cases(streams, arguments.smoke)
    else:
        cases = random_cases(streams, model.spec.vocab_size, arguments.smoke)
    arms = [arm for arm in arms if arm.name in ("off", *arguments.methods.split(","))]
    gc.freeze()  # as the engine process does
    measure(arms, cases, 1 if arguments.smoke else arguments.rounds)
    report(arms, cases, arguments.out)


def report(arms: Sequence[Arm], cases: Sequence[Case], out: Path | None) -> None:
    """Print medians, lowest and highest; write them."""
    without, *others = arms
    print(f"{'case':>12}{'streams':>9}" + "".join(f"{arm.name:>24}" for arm in others) + "   times faster than off")
    rows = []
    for case in cases:
        columns = ""
        for arm in others:
            found = sorted(arm.ratios(case, without))
            columns += f"{statistics.median(found):>10.2f} ({found[0]:.2f} to {found[-1]:.2f})".rjust(24)
            rows.append({"case": case.name, "streams": case.streams, "method": arm.name, "ratios": found})
        print(f"{case.name:>12}{case.streams:>9}{columns}")
    for arm in others:
        print(f"{arm.name}: {arm.acceptance()}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "speculation.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
