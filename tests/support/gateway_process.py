"""A gateway over fake replicas in a process of its own, to be killed: each line on standard input starts one.

    python gateway_process.py CONFIG.json CHECKPOINT [LOG]

To LOG it writes the text of each request to the engine; the answers are then short, and come slowly.
The gateway is forked from a process that has imported everything, so that hundreds of starts take little time. Once it
is ready it writes its process id and its port; once it has ended, its parent writes `ended`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from fake_replica import EMBED_CARD, GENERATE_CARD, FakeReplica, answer_text
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server
from kvarn.observe.logging import configure_logging
from kvarn.wire.messages import Submit
from scripted_answers import called

STEP_S, SLOW_STEP_S = 0.002, 0.05
TOKENS_PER_STEP = 2


def answer_length(prompt_tokens: int) -> int:
    """Tokens of an answer: the end token is one more."""
    return 10 + (prompt_tokens * 37) % 150


def answer(request: Submit, _: int) -> list[int]:
    prompt = bytes(token for token in request.prompt_token_ids if token < 256)
    if b"web_search" in prompt and b"quoted data" not in prompt:  # the tool is offered, and has not been called
        return answer_text(called("web_search", query="kvarn"))
    return answer_text("x" * answer_length(len(request.prompt_token_ids)))


def logging_replica(log: Path) -> FakeReplica:
    def answer(request: Submit, _: int) -> list[int]:
        with log.open("a") as file:
            file.write(bytes(token for token in request.prompt_token_ids if token < 256).decode() + "\n")
        return answer_text("ok!")

    return FakeReplica(GENERATE_CARD, answer, step_s=SLOW_STEP_S)


async def serve(config: KvarnConfig, directory: Path, *logs: str) -> None:
    chat = FakeReplica(
        replace(GENERATE_CARD, max_context_length=8192), answer, tokens_per_step=TOKENS_PER_STEP, step_s=STEP_S
    )
    chat = logging_replica(Path(logs[0])) if logs else chat
    replicas = (chat, FakeReplica(EMBED_CARD, step_s=STEP_S))
    models = {
        model.name: ServedModel(model.name, model, [replica], directory)
        for model, replica in zip(config.models, replicas, strict=True)
    }
    listener = bind(config.gateway)
    server = build_server(create_app(config, models), config.gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(15, server.handle_exit, 15, None)
    await _until(lambda: serving.done() or (server.started and all(model.ready for model in models.values())))
    if not serving.done():
        _tell(f"{os.getpid()} {listener.getsockname()[1]}")
    await serving


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    config = KvarnConfig.model_validate_json(Path(sys.argv[1]).read_text())
    configure_logging(config.log_level)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(serve(config, Path(sys.argv[2]), *sys.argv[3:]))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        _tell("ended")


if __name__ == "__main__":
    main()
