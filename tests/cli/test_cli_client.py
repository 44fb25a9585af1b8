"""`kvarn chat`, `kvarn complete` and `kvarn models` against a running server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from deployed_server import wait_for

SMALL = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")


@pytest.fixture(scope="module")
def served(serve_long):
    return serve_long("kvarn-demo", *SMALL)


def test_one_question_is_answered(kvarn, served):
    done = kvarn("chat", "What is TTFT?", "--url", served.url, "--temperature", "0")
    assert done.returncode == 0 and "first token" in done.stdout and done.stderr == ""


def test_a_question_and_a_prompt_may_be_piped_in(kvarn, served):
    chatted = kvarn("chat", "--url", f"{served.url}/v1", "--temperature", "0", stdin="What is TTFT?\n")
    assert chatted.returncode == 0 and "first token" in chatted.stdout
    completed = kvarn("complete", "--url", served.url, "--max-tokens", "3", stdin="The KV cache")
    assert completed.returncode == 0 and completed.stdout.strip()
    nothing = kvarn("complete", "--url", served.url)
    assert nothing.returncode == 2


def test_models_are_listed_with_their_readiness(kvarn, served):
    table = kvarn("models", "--url", served.url).stdout
    assert "kvarn-demo" in table and "ready" in table
    assert "kvarn-demo" in kvarn("models", KVARN_URL=served.url).stdout
    (line,) = kvarn("models", "--json", "--url", served.url).stdout.splitlines()
    assert json.loads(line)["ready"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chat", "hi", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["chat", "hi", "--url", "nonsense"], "http://"),
        (["models", "--url", "http://127.0.0.1:1"], "kvarn serve"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(kvarn, arguments, says):
    done = kvarn(*arguments)
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_the_server_refuses_is_told_in_its_words(kvarn, served):
    done = kvarn("chat", "hi", "--model", "nope", "--url", served.url)
    assert done.returncode == 1 and "'nope' does not exist" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_chat_at_a_terminal_goes_on_until_the_input_ends(served):
    before = len(served.log)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from kvarn.cli.main import main; main()", "chat", "--url", served.url]
    process = subprocess.Popen(
        [*command, "--temperature", "0"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, b"What is TTFT?\nWhat is TPOT?\n\x04")
    shown, errors = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 0, errors
    assert "time to first token" in shown and "time per output token" in shown.lower()
    assert "Ctrl-D" in errors
    wait_for(lambda: sum("/v1/chat/completions" in line for line in served.log[before:]) >= 2)
    assert sum("endpoint=/v1/models" in line for line in served.log[before:]) == 1, "the model is asked for once"
