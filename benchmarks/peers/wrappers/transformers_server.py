"""transformers' `generate` over HTTP, in static batches. Runs in the environment of transformers."""

from __future__ import annotations

import argparse
import queue
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.wrappers.front import Inbox, Job, serve

GATHER_S = 0.01
"""Requests that come so close together make one batch."""


class HandOn(StoppingCriteria):
    """Called after each step with all rows: hands each job its new token and says which rows are done."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self._steps = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor, **_: object) -> torch.BoolTensor:
        self._steps += 1
        for job, token in zip(self._jobs, input_ids[:, -1].tolist(), strict=True):
            if self._steps <= job.max_tokens:
                job.emit([token], self._steps == job.max_tokens)
        done = [self._steps >= job.max_tokens or job.cancelled.is_set() for job in self._jobs]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)


def engine(arguments: argparse.Namespace, inbox: Inbox) -> None:
    """Load the model and answer batch after batch."""
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype, attn_implementation="sdpa")
    model.eval()
    while True:
        answer(model, batch(inbox, arguments.max_seqs))


def batch(inbox: Inbox, limit: int) -> list[Job]:
    """Wait for a job, then take what else is there or comes within a moment, `limit` at most."""
    jobs = [inbox.get()]
    end = time.monotonic() + GATHER_S
    while len(jobs) < limit:
        try:
            jobs.append(inbox.get(timeout=max(0.0, end - time.monotonic())))
        except queue.Empty:
            break
    return [job for job in jobs if not job.cancelled.is_set()]


def answer(model: PreTrainedModel, jobs: list[Job]) -> None:
    """Generate for all rows until the last is done; shorter prompts are padded on the left."""
    if not jobs:
        return
    longest = max(len(job.prompt) for job in jobs)
    ids = torch.tensor([[0] * (longest - len(job.prompt)) + job.prompt for job in jobs])
    mask = torch.tensor([[0] * (longest - len(job.prompt)) + [1] * len(job.prompt) for job in jobs])
    config = GenerationConfig(
        max_new_tokens=max(job.max_tokens for job in jobs), do_sample=False, eos_token_id=None, pad_token_id=0
    )
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([HandOn(jobs)]),
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-seqs", type=int, required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], required=True)
    arguments = parser.parse_args()
    serve(lambda inbox: engine(arguments, inbox), arguments.port)


if __name__ == "__main__":
    main()
