"""A served model in two processes: its answers are those of one, also when one of the two is killed or hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from profiles import THOROUGH, effort, thorough

pytest.importorskip("kvarn.kernels.cpu._native", reason="torch's own products do not promise the order of their sums")

OPTIONS = {"path": "kvarn-demo", "kv_cache_gib": 0.1, "threads": 1, "failover": {"max_losses": 10}}

SHARED = {"name": "shared", "tensor_parallel_invariant": True, "prefill_context_parallel_size": 2, **OPTIONS}
NUM_TOKENS = effort(150, 400)


@pytest.fixture(scope="module")
def ranks(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    configuration = {
        "models": [
            {"name": "two", "tensor_parallel_size": 2, **OPTIONS},
            {"name": "one", "tensor_parallel_invariant": True, **OPTIONS},
            *([SHARED] if THOROUGH else []),
        ],
        "replica": {"restart_backoff_s": 0.05, "max_restart_backoff_s": 0.5, "step_timeout_s": 10},
        "gateway": {"port": 0, "drain_timeout_s": 2},
    }
    with serving(tmp_path_factory.mktemp("ranks"), configuration) as server:
        yield server


def answer(
    server: Any,
    model: str,
    after: int = 0,
    disturb: Callable[[], None] = lambda: None,
    question: str = "What does a router do?",
    max_tokens: int = NUM_TOKENS,
) -> tuple[str, int]:
    """A streamed answer, and its number of tokens; something is done after so many events of it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "temperature": 1,
        "seed": 5,
        "ignore_eos": True,
    }
    text, tokens, events = "", 0, 0
    with server.http.stream("POST", "/v1/chat/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                events += 1
                if events == after:
                    disturb()
    return text, tokens


def other_rank(server: Any, model: str = "two") -> int:
    """The process of rank 1: the only child of the engine process."""
    engine = server.engine_pid(model)
    (child,) = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    return int(child)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process in /proc")
@pytest.mark.chaos
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, thorough(signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_hangs_changes_no_answer(ranks, with_signal):
    wanted = answer(ranks, "one")
    assert wanted[1] == NUM_TOKENS
    assert answer(ranks, "two") == wanted
    engine, victim = ranks.engine_pid("two"), other_rank(ranks)
    assert answer(ranks, "two", 2, lambda: os.kill(victim, with_signal)) == wanted
    # On a busy machine all tokens may be on their way when the rank is killed: then nobody waits for the next engine.
    ranks.wait_until(lambda: ranks.engine_pid("two") != engine, "the next engine", 60)
    ranks.wait_until(lambda: is_gone(engine) and is_gone(victim), "the processes of the first engine to end")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process in /proc")
@pytest.mark.chaos
def test_no_rank_outlives_its_engine(ranks):
    engine, rank = ranks.engine_pid("two"), other_rank(ranks)
    os.kill(engine, signal.SIGKILL)
    ranks.wait_until(lambda: is_gone(rank), "the rank to end")
    ranks.wait_until(lambda: ranks.engine_pid("two") != engine, "the next engine", 60)
    rank = other_rank(ranks)
    os.kill(rank, signal.SIGKILL)  # while nothing runs
    engine = ranks.engine_pid("two")
    ranks.wait_until(lambda: ranks.engine_pid("two") != engine, "the next engine", 60)
    ranks.wait_until(lambda: is_gone(engine) and is_gone(rank), "the processes of the engine before to end")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process in /proc")
@pytest.mark.chaos
@pytest.mark.thorough
def test_a_rank_that_is_killed_in_the_middle_of_a_long_prompt_changes_no_answer(ranks):
    """It is stopped first, so that the other one waits for its keys and values when it is killed."""
    ask = partial(answer, ranks, question="What does a router do? " * 60, max_tokens=20)
    wanted = ask("one")
    engine, victim = ranks.engine_pid("shared"), other_rank(ranks, "shared")
    os.kill(victim, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(ask, "shared")
        ranks.wait_until(lambda: ranks.http.get("/load").json()["server_load"] == 1, "the request to arrive")
        os.kill(victim, signal.SIGKILL)
        assert going.result() == wanted
    assert ranks.engine_pid("shared") != engine, "the engine was started again"
