"""A gateway over a fake replica in a process of its own, for tests that kill it in mid-batch.

    python batch_gateway.py CONFIG.json CHECKPOINT LOG

It writes its port to standard output once it is ready, and to LOG what each request to the engine asks.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fake_replica import EMBED_CARD, GENERATE_CARD, FakeReplica, answer_text
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server
from kvarn.wire.messages import Submit

STEP_S = 0.05


def asked(request: Submit) -> str:
    """The text of a prompt, without its special tokens."""
    return bytes(token for token in request.prompt_token_ids if token < 256).decode()


async def serve(config: KvarnConfig, checkpoint: Path, log: Path) -> None:
    def answer(request: Submit, _: int) -> list[int]:
        with log.open("a") as file:
            file.write(asked(request) + "\n")
        return answer_text("ok!")

    replicas = (FakeReplica(GENERATE_CARD, answer, step_s=STEP_S), FakeReplica(EMBED_CARD))
    models = {
        model.name: ServedModel(model.name, model, [replica], checkpoint)
        for model, replica in zip(config.models, replicas, strict=True)
    }
    listener = bind(config.gateway)
    server = build_server(create_app(config, models), config.gateway)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    asyncio.get_running_loop().add_signal_handler(15, server.handle_exit, 15, None)
    while not (serving.done() or (server.started and _ready(models))):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await serving


def _ready(models: dict[str, ServedModel]) -> bool:
    return all(model.ready for model in models.values())


if __name__ == "__main__":
    loaded = KvarnConfig.model_validate_json(Path(sys.argv[1]).read_text())
    asyncio.run(serve(loaded, Path(sys.argv[2]), Path(sys.argv[3])))
