"""The engine on models with random weights: speed by batch, load, and a peer on the same shapes."""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from benchmarks.gpu.run import THREADS, Session, free_memory
from benchmarks.gpu.shapes import SHAPES, random_decoder
from kvarn.config.engine import EngineConfig
from kvarn.costs.decoder import DecoderCosts
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.weights import Quantization
from kvarn.models.decoder import Decoder
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor

TOKEN_BUDGET = 8192


class Engine:
    """An engine on one decoder, with room for the largest batch."""

    def __init__(
        self, session: Session, model: Decoder, *, graphs: bool = True, longest: int = 0, batch: int = 0
    ) -> None:
        """`longest`: tokens of a sequence, `batch`: sequences; by default those of the session."""
        length = (longest or sum(session.lengths)) + BLOCK_SIZE
        batch = batch or max(session.batches)
        self.executor = AsyncExecutor(
            model,
            num_blocks=batch * -(-length // BLOCK_SIZE) + 8,
            max_num_seqs=batch,
            max_context_length=length,
            fill_up=True,
        )
        self.executor.runner.graphs.enabled &= graphs
        config = EngineConfig(max_num_seqs=batch, token_budget=TOKEN_BUDGET, tpot_target_ms=1e9, prefix_cache=False)
        self.core = EngineCore(EngineParts(self.executor, config), time.monotonic)
        self._vocabulary = model.spec.vocab_size
        self._random = random.Random(0)

    def submit(self, name: str, prompt: int, answer: int, **sampling_params: Any) -> None:
        """A request of random tokens, greedy unless it is told otherwise."""
        tokens = [self._random.randrange(self._vocabulary) for _ in range(prompt)]
        sampling = SamplingParams(**{"seed": 0, "temperature": 0.0, "max_tokens": answer} | sampling_params)
        self.core.add(Submit(request_id=name, prompt_token_ids=tokens, sampling=sampling))

    def drain(self) -> Iterator[tuple[float, list[Any]]]:
        """Steps until nothing is left: when each ended, and its deltas."""
        while self.core.has_work():
            deltas = self.core.step().deltas
            yield time.monotonic(), deltas


def batch_speed(session: Session, engine: Engine, batch: int, **sampling_params: Any) -> dict[str, float]:
    """Seconds to all first tokens, and of a step in which all decode."""
    prompt, answer = session.lengths
    began = time.monotonic()
    for index in range(batch):
        engine.submit(str(index), prompt, answer, **sampling_params)
    ends, first = [], 0.0
    started: set[str] = set()
    for now, deltas in engine.drain():
        started |= {delta.request_id for delta in deltas}
        if len(started) == batch:
            first = first or now
            ends.append(now)
    steps = [after - before for before, after in pairwise(ends)][2:-2] or [ends[-1] - began]
    median = statistics.median(steps)
    return {"prompts_s": first - began, "step_ms": median * 1e3, "tokens_per_s": batch / median}


def engine_speed(session: Session) -> dict[str, Any]:
    """Each shape and form of weights, by batch; the first also without captured steps."""
    found: dict[str, Any] = {}
    for shape in session.shapes:
        for form in session.forms:
            quantization = _quantization(form)
            began = time.monotonic()
            model = random_decoder(shape, kernels_for("triton", session.device), quantization)
            entry: dict[str, Any] = {"load_s": time.monotonic() - began}
            found[f"{shape} {form}"] = entry
            for graphs in (True, False) if quantization is None else (True,):
                engine = Engine(session, model, graphs=graphs)
                engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
                batch_speed(session, engine, 1)  # compiles and captures
                outside, before = driver_bytes(session), engine.executor.runner.graphs.num_captured
                engine.executor.runner.checks_allocations = True
                batch_speed(session, engine, 1)
                engine.executor.runner.checks_allocations = False
                for batch in session.batches[:: 1 if quantization is None else 2] if graphs else session.batches[:1]:
                    speed = batch_speed(session, engine, batch)
                    speed["of_floor"] = floor_ms(session, model.costs, batch) / speed["step_ms"]
                    entry[f"{batch}{'' if graphs else ' without graphs'}"] = speed
                    session.note("engine", found)
                if captured := engine.executor.runner.graphs.num_captured - before:
                    entry["captured"] = captured
                    entry["driver_bytes_a_graph"] = (driver_bytes(session) - outside) / captured
                engine.executor.shutdown()
                del engine
                free_memory()
            del model
            free_memory()
    return found


def tokens(session: Session) -> dict[str, bool]:
    """Whether a request gets the same tokens among others, and by steps that are not captured, as alone."""
    found: dict[str, bool] = {}
    for form in session.forms[:1] if session.dry else session.forms:
        model = random_decoder(session.shapes[-1], kernels_for("triton", session.device), _quantization(form))
        found |= {f"{form}, {name}": same for name, same in _same_tokens(session, model).items()}
        session.note("tokens", found)
    return found


def _same_tokens(session: Session, model: Decoder) -> dict[str, bool]:
    most = 2 if session.dry else 8
    prompt, answer = session.lengths
    found: dict[str, list[int]] = {}
    for name, count, graphs in (("alone", 1, True), ("among others", most, True), ("not captured", most, False)):
        engine = Engine(session, model, graphs=graphs)
        for index in range(count):
            engine.submit(str(index), prompt, answer)
        of_first = [delta for _, deltas in engine.drain() for delta in deltas if delta.request_id == "0"]
        found[name] = [token for delta in of_first for token in delta.token_ids]
        engine.executor.shutdown()
        del engine
        free_memory()
    return {name: taken == found["alone"] and len(taken) == answer for name, taken in found.items()}


def _quantization(form: str) -> Quantization | None:
    return None if form == "bf16" else form  # type: ignore[return-value]


def driver_bytes(session: Session) -> int:
    """Of the device's memory that torch does not hold: the driver's, for captured steps above all."""
    if not session.timer.on_gpu:
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def floor_ms(session: Session, costs: DecoderCosts, batch: int) -> float:
    """The bytes of a decode step at the measured rate."""
    prompt, answer = session.lengths
    tokens = batch * (prompt + answer // 2)
    work = costs.step(tokens=batch, logits_rows=batch, kv_tokens=tokens, pairs=tokens)
    return work.num_bytes / session.read_gb_per_s / 1e6


def load(session: Session) -> dict[str, Any]:
    """Requests at random times, at shares of the rate that the engine can keep."""
    model = random_decoder(session.shapes[0], kernels_for("triton", session.device))
    engine = Engine(session, model)
    engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
    prompt, answer = session.lengths
    count = 2 if session.dry else 256
    began = time.monotonic()
    for index in range(count):
        engine.submit(f"s{index}", prompt, answer)
    ended = max(now for now, _ in engine.drain())
    rate = count / (ended - began)
    found: dict[str, Any] = {"saturation_requests_per_s": rate}
    for share in (0.5, 0.8, 0.95):
        requests = 2 if session.dry else max(20, int(rate * share * 40))
        found[f"{share:.0%}"] = _arrivals(session, engine, rate * share, requests)
        session.note("load", found)
    return found


def _arrivals(session: Session, engine: Engine, rate: float, count: int) -> dict[str, float]:
    generator, at = random.Random(1), 0.0
    arrivals = {}
    for index in range(count):
        at += generator.expovariate(rate)
        arrivals[f"a{index}"] = at
    began, waiting = time.monotonic(), list(arrivals.items())
    first: dict[str, float] = {}
    gaps: list[float] = []
    last: dict[str, float] = {}
    while waiting or engine.core.has_work():
        while waiting and began + waiting[0][1] <= time.monotonic():
            engine.submit(waiting.pop(0)[0], *session.lengths)
        if not engine.core.has_work():
            time.sleep(max(0.0, began + waiting[0][1] - time.monotonic()))
            continue
        deltas, now = engine.core.step().deltas, time.monotonic()
        for name in {delta.request_id for delta in deltas}:
            if name in last:
                gaps.append(now - last[name])
            first.setdefault(name, now - began - arrivals[name])
            last[name] = now
    return _quantiles("ttft", sorted(first.values())) | _quantiles("tpot", sorted(gaps))


def _quantiles(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_{share}_ms": 1e3 * values[min(len(values) - 1, len(values) * share // 100)] for share in (50, 95, 99)
    }


def peer(session: Session) -> dict[str, Any]:
    """vLLM where it is installed, else transformers, on the first shape: the same lengths."""
    config = SHAPES[session.shapes[0]]
    if importlib.util.find_spec("vllm") is not None:
        return _vllm(session, config)
    import transformers

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "dtype")}
    kind = config["architectures"][0].removesuffix("ForCausalLM")
    own = getattr(transformers, f"{kind}Config")(**settings)
    with torch.device(session.device):
        model = getattr(transformers, f"{kind}ForCausalLM")(own).to(session.dtype).eval()
    prompt, answer = session.lengths
    found: dict[str, Any] = {"name": f"transformers {transformers.__version__}"}
    for batch in session.batches[:3]:
        ids = torch.randint(0, config["vocab_size"], (batch, prompt), device=session.device)
        options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
        if session.timer.on_gpu:
            options["cache_implementation"] = "static"
        times = []
        for tokens in (2, 2, answer):  # the first compiles
            began = time.monotonic()
            model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, **options)
            if session.timer.on_gpu:
                torch.cuda.synchronize()
            times.append(time.monotonic() - began)
        step = (times[2] - times[1]) / max(1, answer - 2)
        found[str(batch)] = {"step_ms": step * 1e3, "tokens_per_s": batch / step}
        session.note("peer", found)
    return found


def _vllm(session: Session, config: dict[str, Any]) -> dict[str, Any]:
    import json
    import tempfile
    from pathlib import Path

    import vllm

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(config))
    engine = vllm.LLM(
        str(folder), load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False, max_model_len=2048
    )
    prompt, answer = session.lengths
    found: dict[str, Any] = {"name": f"vllm {vllm.__version__}"}
    for batch in session.batches:
        prompts = [{"prompt_token_ids": [random.randrange(config["vocab_size"]) for _ in range(prompt)]}] * batch
        times = []
        for tokens in (1, 1, answer):
            options = vllm.SamplingParams(temperature=0, min_tokens=tokens, max_tokens=tokens, detokenize=False)
            began = time.monotonic()
            engine.generate(prompts, options, use_tqdm=False)
            times.append(time.monotonic() - began)
        step = (times[2] - times[1]) / max(1, answer - 1)
        found[str(batch)] = {"step_ms": step * 1e3, "tokens_per_s": batch / step, "prompts_s": times[1]}
        session.note("peer", found)
    return found
