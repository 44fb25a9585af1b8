"""The models behind the gateway: their replica, their tokenizer and their template."""

from __future__ import annotations

import asyncio
import logging
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import InitVar, asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import kvarn
from kvarn.config.schema import GatewayConfig, ModelConfig
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.routing.round_robin import next_ready
from kvarn.serving.logprobs import LogprobsEncoder
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.checkpoint import checkpoint_fingerprint, resolve_tokenizer
from kvarn.text.config_files import read_generation_config
from kvarn.text.sampling import SamplingDefaults
from kvarn.text.template_process import TemplateLimits
from kvarn.text.tokenizer import Tokenizer
from kvarn.text.tool_calls.formats import HERMES, ToolFormat, find_format
from kvarn.wire.messages import ModelCard
from kvarn.wire.openai.errors import ApiError, model_not_found, unavailable

_LIFE = (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.DOWN)

_log = logging.getLogger("kvarn.gateway")


class Answering(Protocol):
    """What may answer a request: a served model, or code of the gateway itself."""

    @property
    def name(self) -> str:
        """What it is counted under."""
        ...

    @property
    def version(self) -> str:
        """Changes when its answers may."""
        ...

    @property
    def replica_name(self) -> str:
        """Which copy of it this is."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model whose parts are all there."""

    name: str
    replica: ReplicaClient
    card: ModelCard
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    logprobs: LogprobsEncoder
    config: ModelConfig
    tool_format: ToolFormat = HERMES
    version: str = ""
    """Fingerprint of the checkpoint."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Sampling parameters of requests that leave them out."""
    draw_seed: Callable[[], int] | None = None
    """Gives a seed to requests that have none."""
    template_turns: FairSemaphore = field(default_factory=lambda: FairSemaphore(1))
    """Tenants take turns at the template's process."""
    replica_name: str = ""
    """Which of the replicas of the model this is."""

    @property
    def fingerprint(self) -> str:
        """What answers with the same seed may differ with: Kvarn's version, the checkpoint, types and kernels, the
        tokenizer, the chat template and the sampling parameters by default."""
        card = self.card
        parts = (kvarn.__version__, self.version, card.dtype, card.quantization, card.kernels, card.kv_dtype)
        text = (self.config.tokenizer or "", self.chat_template.source, repr(self.sampling_defaults))
        return f"fp_{sha256('/'.join(parts + text).encode()).hexdigest()[:12]}"


@dataclass(slots=True)
class ServedModel:
    """One model: what clients call it, the replicas that run it, and the directory of its checkpoint."""

    name: str
    config: ModelConfig
    clients: InitVar[Sequence[ReplicaClient]]
    directory: Path
    created: int = field(default_factory=lambda: int(time.time()))
    tokenizer: Tokenizer | None = None
    """Loaded in the background when the gateway starts, as are the template and what is made of both."""
    chat_template: ChatTemplate | None = None
    logprobs: LogprobsEncoder | None = None
    version: str = ""
    """Fingerprint of the checkpoint."""
    tool_format: ToolFormat = HERMES
    """How it writes tool calls; known once tokenizer and template are."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Those of the checkpoint's generation_config.json; known once the tokenizer is."""
    load_error: str | None = None
    template_turns: FairSemaphore = field(default_factory=lambda: FairSemaphore(1))
    """See `ReadyModel`."""
    draw_seed: Callable[[], int] | None = None
    process: int = 0
    """Number of the gateway process."""
    replicas: dict[str, ReplicaClient] = field(init=False)
    """By name: the machine's and the model's, and a number where there are several."""
    _last: int = -1
    """Position of the replica picked last."""

    def __post_init__(self, clients: Sequence[ReplicaClient]) -> None:
        name = f"{platform.node()}/{self.name}"
        names = [name] if len(clients) == 1 else [f"{name}/{number}" for number in range(len(clients))]
        self.replicas = dict(zip(names, clients, strict=True))
        if self.config.seed is not None:
            stream = random.Random(f"{self.config.seed} {self.process}")  # each gateway process has one of its own
            self.draw_seed = partial(stream.getrandbits, 63)

    @property
    def replica(self) -> ReplicaClient:
        """The replica that is furthest in its life: what is said of the model while none, or any, is ready."""
        return min(self.replicas.values(), key=lambda each: _LIFE.index(each.state))

    @property
    def ready(self) -> bool:
        """Whether a request can be answered now: a replica takes requests and the tokenizer is loaded."""
        replica = self.replica
        return replica.state is ReplicaState.READY and self.tokenizer is not None and replica.card is not None

    @property
    def ready_replicas(self) -> list[str]:
        """Names of those that take requests."""
        return [name for name, each in self.replicas.items() if each.state is ReplicaState.READY]

    def pick_replica(self) -> str | None:
        """Name of the replica that answers the next request; None where none takes requests."""
        position = next_ready([each.state is ReplicaState.READY for each in self.replicas.values()], self._last)
        if position is None:
            return None
        self._last = position
        return list(self.replicas)[position]

    def when_ready(self, picked: str | None = None) -> ReadyModel:
        """This model with its parts, and the replica that answers: the one that was picked before, or the next.

        Raises:
            ApiError: 503 with Retry-After while it starts, restarts or drains; 500 when its tokenizer cannot be read.
        """
        if self.load_error is not None:
            raise ApiError(500, self.load_error, type="server_error", code="model_broken")
        template, logprobs = self.chat_template, self.logprobs
        replica = None if picked is None else self.replicas.get(picked)
        if replica is None or replica.state is not ReplicaState.READY:
            picked = self.pick_replica()
            replica = None if picked is None else self.replicas[picked]
        card = None if replica is None else replica.card
        tokenizer = self.tokenizer
        if not picked or replica is None or card is None or tokenizer is None or template is None or logprobs is None:
            raise unavailable(f"The model {self.name!r} is not ready: {self.state_text}.", "model_not_ready")
        return ReadyModel(
            self.name,
            replica,
            card,
            tokenizer,
            template,
            logprobs,
            self.config,
            self.tool_format,
            self.version,
            self.sampling_defaults,
            self.draw_seed,
            self.template_turns,
            picked,
        )

    @property
    def state_text(self) -> str:
        """The state in words for people, such as `starting (load weights, 40 %)`."""
        state = self.replica.state
        if state is ReplicaState.STARTING:
            stage, fraction = self.replica.progress
            return f"starting ({stage}, {fraction:.0%})"
        return "loading its tokenizer" if state is ReplicaState.READY and self.tokenizer is None else str(state)

    async def load_text(self, threads: Executor, limits: TemplateLimits) -> None:
        """Read tokenizer and template from the checkpoint, once; a failure is kept for `/ready` and for requests."""
        loop = asyncio.get_running_loop()
        if self.tokenizer is not None:
            return
        try:
            directory = self.directory
            if self.config.tokenizer:
                directory = await loop.run_in_executor(threads, resolve_tokenizer, self.config.tokenizer)
            load = partial(ChatTemplate.load, directory, self.config.chat_template, limits)
            template = await loop.run_in_executor(threads, load)
            self.chat_template = template
            tokenizer, _ = await asyncio.gather(
                loop.run_in_executor(threads, self._load_tokenizer, directory, template), template.start()
            )
            self.tokenizer = tokenizer
        except Exception as error:
            self.load_error = f"cannot load the tokenizer of {self.name!r}: {error}"
            raise

    def _load_tokenizer(self, directory: Path, template: ChatTemplate) -> Tokenizer:
        tokenizer = Tokenizer.load(directory, self.directory, self.config.generation_config)
        self.sampling_defaults = read_generation_config(self.directory, self.config.generation_config).defaults
        _log.info("sampling parameters by default", extra={"model": self.name, **asdict(self.sampling_defaults)})
        if template.exists:
            tokenizer.prepare_words()
        self.version = checkpoint_fingerprint(self.directory)
        self.tool_format = find_format(
            self.config.tool_format, template.source, lambda token: bool(tokenizer.ids_of((token,)))
        )
        self.logprobs = LogprobsEncoder(tokenizer)
        return tokenizer

    async def close(self) -> None:
        """End what runs for its text."""
        if self.chat_template is not None:
            await self.chat_template.close()


class ModelTable:
    """Finds the model a request names."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = dict(models)
        self._names = {alias: model for model in models.values() for alias in model.config.aliases} | self._models

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str, visible: Callable[[str], bool] = lambda name: True) -> ServedModel:
        """The model of that name or alias. `visible` says which models the client may hear of.

        Raises:
            ApiError: 404 `model_not_found`; names those that are visible.
        """
        model = self._names.get(name)
        if model is None:
            raise model_not_found(name[:200], [served for served in self._models if visible(served)])
        return model

    async def load_text(self, threads: Executor, config: GatewayConfig) -> None:
        """Load every model's tokenizer and template; one that fails leaves the others ready, and keeps the reason."""
        limits = TemplateLimits(config.template_timeout_s, config.template_memory_bytes)
        loads = [model.load_text(threads, limits) for model in self]
        for model, result in zip(self, await asyncio.gather(*loads, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                _log.debug("model %s cannot serve text", model.name, exc_info=result)

    async def close(self) -> None:
        """End what runs for the models' text."""
        await asyncio.gather(*[model.close() for model in self])
