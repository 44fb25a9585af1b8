"""Golden prompts of the served models: read from their files, rendered by their templates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from kvarn.catalog.models import ReadyModel, ServedModel
from kvarn.catalog.text_pool import TextPool
from kvarn.quality.golden import GoldenPrompt, GoldenQuestion, GoldenSetError, golden_set_path, read_golden_set, spread
from kvarn.replica.client.protocol import ReplicaClient
from kvarn.text.errors import TextError
from kvarn.wire.openai.errors import ApiError

_TENANT = "kvarn:quality"

log = logging.getLogger(__name__)


class GoldenModel:
    """A served model as the watch sees it (`MonitoredModel`); its golden prompts are rendered when it is ready."""

    def __init__(self, served: ServedModel, text: TextPool, count: int) -> None:
        self.served = served
        self._text = text
        self._count = count
        self._prompts: Sequence[GoldenPrompt] = ()
        self._rendered = False

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def fingerprint(self) -> str:
        """Digest of the checkpoint; empty until the prompts are rendered."""
        text = self.served.text
        return text.version if text is not None and self._rendered else ""

    @property
    def replicas(self) -> Mapping[str, ReplicaClient]:
        return self.served.replicas

    @property
    def prompts(self) -> Sequence[GoldenPrompt]:
        return self._prompts

    async def render(self) -> None:
        """Wait until the model is ready, and render its golden prompts. What cannot be read is logged, and the
        built-in prompts are asked."""
        while not self.served.ready and self.served.load_error is None:
            await self.served.changed()
        path = golden_set_path(self.served.config.path, self.served.config.golden_prompts)
        try:
            if path is not None and self.served.ready and (card := self.served.card) and card.kind == "generate":
                questions = spread(await asyncio.to_thread(read_golden_set, path), self._count)
                ready = self.served.require_ready()
                self._prompts = [await render_question(ready, self._text, question) for question in questions]
        except (GoldenSetError, TextError, ApiError) as error:
            log.error(
                "golden prompts cannot be used; asking built-in ones",
                extra={"model": self.name, "reason": str(error)},
            )
        self._rendered = True


class GoldenModels:
    """The models that are served now, each version of one by itself, as the watch sees them."""

    def __init__(self, models: Iterable[ServedModel], text: TextPool, count: int) -> None:
        self._models = models
        self._text = text
        self._count = count
        self._known: dict[int, tuple[GoldenModel, asyncio.Task[None]]] = {}

    def __call__(self) -> list[GoldenModel]:
        """Those there are; the prompts of one that is new are rendered once it is ready. Needs a running event loop."""
        own = [model for model in self._models if model.config.external is None]
        versions = {id(version): version for model in own for version in model.all_versions}
        for key in self._known.keys() - versions.keys():
            self._known.pop(key)[1].cancel()
        for key in versions.keys() - self._known.keys():
            golden = GoldenModel(versions[key], self._text, self._count)
            self._known[key] = golden, asyncio.create_task(golden.render(), name=f"golden prompts of {golden.name}")
        return [golden for golden, _ in self._known.values()]

    async def stop(self) -> None:
        tasks = [task for _, task in self._known.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def render_question(model: ReadyModel, text: TextPool, question: GoldenQuestion) -> GoldenPrompt:
    """A golden question as the engine takes it."""
    token_ids = question.prompt_token_ids
    if question.messages:
        token_ids = await model.render(text, _TENANT, 0, lambda: question.messages, tools=question.tools)
    return GoldenPrompt(name=question.id, token_ids=token_ids)
