"""OpenVINO GenAI's continuous batching over HTTP. Runs in OpenVINO's environment."""

from __future__ import annotations

import argparse
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.wrappers.front import Inbox, Job, serve


@dataclass
class Running:
    """A job inside the pipeline."""

    job: Job
    handle: Any
    left: int
    """Tokens still to come."""


def engine(arguments: argparse.Namespace, inbox: Inbox) -> None:
    """Build the pipeline and step it for as long as there is work."""
    pipeline = build(arguments)
    numbers = count(1)
    running: list[Running] = []
    while True:
        for job in taken(inbox, wait=not running):
            handle = pipeline.add_request(
                next(numbers), openvino.Tensor(np.array([job.prompt], dtype=np.int64)), greedy(job.max_tokens)
            )
            running.append(Running(job, handle, job.max_tokens))
        if pipeline.has_non_finished_requests():
            pipeline.step()
        running = [each for each in running if still_running(each)]


def build(arguments: argparse.Namespace) -> Any:
    """The pipeline, with prefix caching and prompts split into chunks that fit a step."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = arguments.kv_gib
    scheduler.max_num_seqs = arguments.max_seqs
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {
        "INFERENCE_NUM_THREADS": arguments.threads,
        "INFERENCE_PRECISION_HINT": arguments.compute,
        "KV_CACHE_PRECISION": arguments.kv,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": True,
    }
    return genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)


def greedy(tokens: int) -> Any:
    """Exactly so many tokens, the likeliest each time."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def taken(inbox: Inbox, *, wait: bool) -> Iterator[Job]:
    """The jobs that wait; where nothing runs, wait for a first."""
    try:
        yield inbox.get(block=wait)
        while True:
            yield inbox.get_nowait()
    except queue.Empty:
        return


def still_running(each: Running) -> bool:
    """Hand on what a step brought; False where the job has ended."""
    if each.job.cancelled.is_set():
        each.handle.stop()
        return False
    if each.handle.can_read():
        tokens = [token for output in each.handle.read().values() for token in output.generated_ids]
        each.left -= len(tokens)
        if tokens:
            each.job.emit(tokens, each.left <= 0)
    return each.left > 0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-seqs", type=int, required=True)
    parser.add_argument("--kv-gib", type=int, required=True)
    parser.add_argument("--kv", choices=["bf16", "f16", "u8"], required=True)
    parser.add_argument("--compute", choices=["bf16", "f32"], required=True)
    arguments = parser.parse_args()
    serve(lambda inbox: engine(arguments, inbox), arguments.port)


if __name__ == "__main__":
    main()
