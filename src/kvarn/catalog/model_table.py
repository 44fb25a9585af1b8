"""Finds what a request names: a model, one version of it, or an adapter."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from kvarn.catalog.models import ServedModel, sandbox_limits
from kvarn.config.gateway import GatewayConfig
from kvarn.observe.metrics import UNKNOWN
from kvarn.routing.model_choice import split_version
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import model_not_found

_log = logging.getLogger("kvarn.catalog")


class ModelTable:
    """Finds the model a request names. What is served may change."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def find(self, name: str, visible: Callable[[str], bool] = lambda name: True) -> ServedModel:
        """The model of that name or alias, or the version of it that is named (`model@version`). Raises `ApiError` 404,
        which names the models that are `visible` to the client."""
        model = self.named(name)
        if model is None:
            raise model_not_found(name[:200], [served for served in self._models if visible(served)])
        return model

    def choose_version(self, name: str, visible: Callable[[str], bool] = lambda name: True) -> ServedModel:
        """The version that answers the next request for a model: each gets a share by its ready replicas. Raises as
        `find`."""
        found = self.named(name) or self.find(name, visible)
        several = found.versions and not found.is_version(name)
        return _choose(found.versions, found) if several else found

    def name_of(self, name: str) -> str:
        """The configured name of a model that may be named by an alias or with an adapter: a label of metrics."""
        found = self.named(name) or self.named(name.partition(":")[0])
        return UNKNOWN if found is None else found.name

    def named(self, name: str) -> ServedModel | None:
        found = self._models.get(name) or next((model for model in self if name in model.config.aliases), None)
        if found is None:
            model, version = split_version(name)
            served = None if version is None else self._models.get(model)
            versions = [] if served is None else served.all_versions
            found = next((each for each in versions if each.version == version), None)
        return found

    def find_adapter(self, name: str) -> tuple[ServedModel, AdapterInfo] | None:
        """The adapter of that name, or of `model:name`, and the version of its model that answers the next request for
        it. A model's own name goes first."""
        if self.named(name) is not None:
            return None
        for model in self:
            found = _choose_with(model.all_versions, name)
            if found is not None:
                return found, found.adapters[name]
        for place, letter in enumerate(name):
            if letter == ":" and (named := self.named(name[:place])) is not None:
                adapter, pinned = name[place + 1 :], named.is_version(name[:place])
                if pinned and adapter in named.adapters:
                    return named, named.adapters[adapter]
                found = None if pinned else _choose_with(named.all_versions, adapter)
                if found is not None:
                    return found, found.adapters[adapter]
        return None

    async def load_text(self, threads: Executor, config: GatewayConfig) -> None:
        """Load every model's tokenizer and template; one that fails leaves the others ready, and keeps the reason."""
        limits = sandbox_limits(config)
        loads = [model.load_text(threads, limits) for model in self]
        for model, result in zip(self, await asyncio.gather(*loads, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                _log.debug("model %s cannot serve text", model.name, exc_info=result)

    async def close(self) -> None:
        await asyncio.gather(*[model.close() for model in self])


def _choose(versions: Sequence[ServedModel], otherwise: ServedModel) -> ServedModel:
    """One of those that are ready, by their ready replicas; of those held back only where no other is."""
    ready = [each for each in versions if each.ready for _ in each.replicas.ready]
    serving = [each for each in ready if not each.held_back]
    return random.choice(serving or ready) if ready else otherwise


def _choose_with(versions: Sequence[ServedModel], adapter: str) -> ServedModel | None:
    """Choose among the versions that have an adapter; those that are held back do not count."""
    having = [each for each in versions if adapter in each.adapters and not each.held_back]
    return _choose(having, having[0]) if having else None
