"""The engine's other states: weights in main memory, a cache in fp8, and the kernels of its steps."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch

from benchmarks.gpu.engine_stages import TOKEN_BUDGET, Engine, batch_speed, floor_ms
from benchmarks.gpu.run import THREADS, Session, free_memory
from benchmarks.gpu.shapes import random_decoder
from kvarn.kernels.device.memory import give_back_freed
from kvarn.kernels.device.offload import Offloaded, tensors_of
from kvarn.kernels.dispatch import kernels_for
from kvarn.models.decoder import Decoder

KERNELS = 12
"""Kernels that are listed: those that take most time."""


def fp8_cache(session: Session) -> dict[str, Any]:
    """The first shape with keys and values in fp8, by batch."""
    model = random_decoder(session.shapes[0], kernels_for("triton", session.device), kv_dtype="fp8")
    engine = Engine(session, model)
    engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
    batch_speed(session, engine, 1)  # compiles and captures
    found: dict[str, Any] = {}
    for batch in session.batches:
        found[str(batch)] = speed = batch_speed(session, engine, batch)
        speed["of_floor"] = floor_ms(session, model.costs, batch) / speed["step_ms"]
        session.note("fp8_cache", found)
    engine.executor.shutdown()
    return found


def sleep(session: Session) -> dict[str, Any]:
    """Seconds in which a model's weights go to main memory and come back, and whether it answers as before."""
    model = random_decoder(session.shapes[0], kernels_for("triton", session.device))
    before = _greedy(session, model)
    began = time.monotonic()
    sleeping = Offloaded(tensors_of(model))
    give_back_freed(session.device)
    asleep = time.monotonic()
    num_bytes, left = sleeping.nbytes, _held(session)
    sleeping.restore()
    awake = time.monotonic()
    return {
        "gb": num_bytes / 1e9,
        "to_sleep_s": asleep - began,
        "gb_left_on_the_device": left / 1e9,
        "to_wake_s": awake - asleep,
        "same_tokens": _greedy(session, model) == before,
        "first_answer_s": time.monotonic() - awake,
    }


def _greedy(session: Session, model: Decoder) -> list[int]:
    engine = Engine(session, model, batch=1)
    engine.submit("0", *session.lengths)
    taken = [token for _, deltas in engine.drain() for delta in deltas for token in delta.token_ids]
    engine.executor.shutdown()
    del engine
    free_memory()
    return taken


def _held(session: Session) -> int:
    """Bytes of the device that this process and others hold."""
    if not session.timer.on_gpu:
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def step_kernels(session: Session) -> dict[str, Any]:
    """Microseconds of each kernel in a step of prompts and in one in which all sequences decode."""
    model = random_decoder(session.shapes[0], kernels_for("triton", session.device))
    engine = Engine(session, model)
    engine.executor.compile_ahead(TOKEN_BUDGET, THREADS)
    most = max(session.batches)
    filling = min(most, TOKEN_BUDGET // session.lengths[0])
    batch_speed(session, engine, filling)
    return {
        "prompts": _profiled(session, engine, filling, prompts=True),
        "decode": _profiled(session, engine, most, prompts=False),
    }


def _profiled(session: Session, engine: Engine, batch: int, *, prompts: bool) -> dict[str, Any]:
    """Times of the first steps of a batch, or of some after all of its prompts; by step."""
    prompt, answer = session.lengths
    for index in range(batch):
        engine.submit(str(index), prompt, answer if not prompts else 1)
    started: set[str] = set()
    if not prompts:
        for _, deltas in engine.drain():
            started |= {delta.request_id for delta in deltas}
            if len(started) == batch:
                break
        for _ in range(8):  # captured meanwhile
            engine.core.step()
    session.timer.finish()
    activities = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA][: session.timer.on_gpu]]
    steps, began = 0, time.monotonic()  # none are left of a short answer in a dry run
    with torch.profiler.profile(activities=activities) as profiled:
        while engine.core.has_work() and (prompts or steps < 8):
            engine.core.step()
            steps += 1
        session.timer.finish()
    elapsed = time.monotonic() - began
    for _ in engine.drain():
        pass
    times: dict[str, float] = defaultdict(float)
    for event in profiled.key_averages():
        if session.timer.on_gpu and event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.key[:60]] += event.self_device_time_total
    by_time = sorted(times.items(), key=lambda item: -item[1])
    return {
        "steps": steps,
        "step_ms": elapsed / max(steps, 1) * 1e3,
        "device_ms": sum(times.values()) / max(steps, 1) / 1e3,
        "kernels_us": {name: taken / max(steps, 1) for name, taken in by_time[:KERNELS]},
    }
