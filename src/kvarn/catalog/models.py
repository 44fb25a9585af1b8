"""The models behind the gateway: their replica, their tokenizer and their template."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import InitVar, asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import kvarn
from kvarn.catalog.replicas import ReplicaSet
from kvarn.catalog.text_pool import TextPool
from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.gateway import GatewayConfig
from kvarn.config.model import ModelConfig
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.replica.spec import configured_adapters, replica_names
from kvarn.sandbox.process import SandboxLimits
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.checkpoint import checkpoint_fingerprint, resolve_tokenizer
from kvarn.text.config_files import ignored_fields, read_generation_config
from kvarn.text.logprobs import LogprobsEncoder
from kvarn.text.prompt import PromptBuilder
from kvarn.text.reasoning.formats import ReasoningFormat, find_reasoning_format
from kvarn.text.sampling import SamplingDefaults
from kvarn.text.tokenizer import Tokenizer
from kvarn.text.tool_calls.formats import ToolFormat, find_format
from kvarn.wire.messages import AdapterInfo, ModelCard
from kvarn.wire.openai.errors import ApiError, invalid_request, unavailable

_log = logging.getLogger("kvarn.catalog")


@dataclass(frozen=True, slots=True)
class BuiltInModel:
    """Code of the gateway itself that answers where no served model does."""

    name: str
    version: str
    replica_name: str


@dataclass(frozen=True, slots=True)
class ModelText:
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    logprobs: LogprobsEncoder
    tool_format: ToolFormat  # format of its tool calls
    reasoning_format: ReasoningFormat | None
    """None where it does not reason."""
    version: str  # fingerprint of the checkpoint
    sampling_defaults: SamplingDefaults  # sampling parameters of requests that leave them out


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model whose parts are all there, and which a replica serves."""

    name: str
    served: ServedModel
    loaded_text: ModelText | None
    """None where another server runs the model and its tokenizer is not configured."""
    card: ModelCard
    adapter: str = ""  # name of the adapter that it answers with
    replica_name: str = ""
    """Which of the servers that run it answers; empty where Kvarn runs it."""

    @property
    def public_name(self) -> str:
        return self.adapter or self.name

    @property
    def text(self) -> ModelText:
        """Its tokenizer and template. Raises `ApiError` 400 where there are none here."""
        if self.loaded_text is None:
            why = f"The model {self.name!r} is served by another server, and this one does not have its tokenizer."
            raise invalid_request(why, "model", "model_not_supported")
        return self.loaded_text

    @property
    def is_external(self) -> bool:
        return self.served.config.external is not None

    @property
    def exact_prompts(self) -> bool:
        return self.loaded_text is not None and self.loaded_text.chat_template.exists

    @property
    def reasons(self) -> bool:
        """Whether its reasoning is told from its answers, as far as is known."""
        return self.is_external or self.text.reasoning_format is not None

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        return SamplingDefaults() if self.loaded_text is None else self.loaded_text.sampling_defaults

    @property
    def version(self) -> str:
        """Fingerprint of the checkpoint; what the server says of itself where another runs it."""
        return self.card.kernels if self.is_external else self.text.version

    async def render(
        self,
        pool: TextPool,
        tenant: str,
        size: int,
        messages: Callable[[], list[dict[str, Any]]],
        note: Callable[[str], object] = lambda event: None,
        **options: Any,
    ) -> list[int]:
        """The token ids of the prompt that the chat template makes of messages. `size`: bytes of what it is made from;
        `note` is told what has been done; `options`: see `PromptBuilder`. Raises `ChatTemplateError`,
        `TokenizerError`."""
        text, longest = self.text, self.card.max_context_length
        builder = await pool.run(
            tenant,
            size,
            lambda: PromptBuilder(text.chat_template, text.tokenizer, messages(), context_length=longest, **options),
        )
        rendered = await text.chat_template.render(builder.request, tenant)
        note("templated")
        token_ids = await pool.run(tenant, len(rendered), lambda: builder.token_ids(rendered))
        note("tokenized")
        return token_ids

    @property
    def fingerprint(self) -> str:
        """Digest of everything on which answers with the same seed depend: Kvarn's version, the checkpoint, types and
        kernels, the tokenizer, the chat template and the sampling parameters by default."""
        if self.is_external:
            parts = [kvarn.__version__, self.replica_name, self.version]
            return f"fp_{sha256('/'.join(parts).encode()).hexdigest()[:12]}"
        card, text = self.card, self.text
        parts = [kvarn.__version__, text.version, card.dtype, card.quantization, card.kernels, card.kv_dtype]
        if self.adapter and (found := self.served.adapters.get(self.adapter)) is not None:
            parts.append(found.digest)
        parts += [self.served.config.tokenizer or "", text.chat_template.source, repr(text.sampling_defaults)]
        return f"fp_{sha256('/'.join(parts).encode()).hexdigest()[:12]}"


@dataclass(slots=True)
class ServedModel:
    """One model: what clients call it, the replicas that run it, and the directory of its checkpoint."""

    name: str
    config: ModelConfig
    clients: InitVar[Sequence[ReplicaClient]]  # replicas that are there from the start
    directory: Path
    created: int = field(default_factory=lambda: int(SYSTEM_CLOCK.time()))
    text: ModelText | None = None
    """Loaded in the background when the gateway starts."""
    load_error: str | None = None
    process: int = 0  # number of the gateway process
    version: int = 0
    """Number of the version in the model's deployment; 0: the configuration's."""
    held_back: bool = False
    """It is rolled out, or was given up: as long as another version is ready, it answers only requests that name it."""
    versions: list[ServedModel] = field(default_factory=list)
    """All versions under this name that are served while one replaces another; empty: this one alone."""
    kept_adapters: InitVar[Sequence[AdapterInfo]] = ()  # adapters of its deployment, loaded at run time
    clock: Clock = SYSTEM_CLOCK  # read by all that admits and routes its requests
    replicas: ReplicaSet = field(init=False)
    _template: ChatTemplate | None = None
    _seeds: random.Random = field(init=False)

    def __post_init__(self, clients: Sequence[ReplicaClient], kept_adapters: Sequence[AdapterInfo]) -> None:
        names = replica_names(self.name, len(clients))
        by_name = dict(zip(names, clients, strict=True))
        routing = None if self.config.external is not None else self.config.routing  # `ExternalModel` chooses
        known = {each.name: each for each in (*configured_adapters(self.config), *kept_adapters)}
        self.replicas = ReplicaSet(by_name, self.process, routing, self.config.engine, known.values(), self.clock)
        seed = self.config.seed  # each gateway process draws numbers of its own
        self._seeds = random.SystemRandom() if seed is None else random.Random(f"{seed} {self.process}")

    def version_of(self, replica: str) -> ServedModel:
        """The version that a replica belongs to; this one where it is none's."""
        return next((each for each in self.versions if replica in each.replicas), self)

    @property
    def all_versions(self) -> list[ServedModel]:
        """This version and, while one replaces another, the others."""
        return self.versions or [self]

    def is_version(self, name: str) -> bool:
        """Whether a name that finds this model is that of one version."""
        return name != self.name and name not in self.config.aliases

    def canonical(self, name: str) -> str:
        """The model's own name where it is called by an alias; the name of a version as it is."""
        return name if self.is_version(name) else self.name

    def draw_seed(self) -> int:
        return self._seeds.getrandbits(63)

    @property
    def state(self) -> ReplicaState:
        """State of the replica that is furthest in its life, like all that is said of the model as one."""
        replica = self.replicas.most_ready
        return ReplicaState.STARTING if replica is None else replica.state

    @property
    def progress(self) -> tuple[str, float]:
        """Stage and fraction of the start; while down, why."""
        replica = self.replicas.most_ready
        return ("wait for a replica", 0.0) if replica is None else replica.progress

    @property
    def card(self) -> ModelCard | None:
        replica = self.replicas.most_ready
        return None if replica is None else replica.card

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]:
        return self.replicas.adapters

    @property
    def ready(self) -> bool:
        """Whether a request can be answered now: a replica takes requests and the tokenizer is loaded."""
        return self._has_text and any(each.card is not None for each in self.replicas.ready_clients())

    async def changed(self) -> None:
        """Wait for a change of what answers requests: replicas of any version, the versions themselves, the text."""
        changes = [asyncio.create_task(each.replicas.changed()) for each in self.all_versions]
        try:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in changes:
                each.cancel()

    @property
    def _has_text(self) -> bool:
        return self.text is not None or (self.config.external is not None and self.config.tokenizer is None)

    def require_ready(self, adapter: str = "") -> ReadyModel:
        """This model with its parts, to answer with an adapter where one is named. Raises `ApiError` 503 with
        Retry-After while it starts, restarts or drains; 500 when its tokenizer cannot be read."""
        if self.load_error is not None:
            raise ApiError(500, self.load_error, type="server_error", code="model_broken")
        replica = self.replicas.most_ready
        if replica is None or replica.state is not ReplicaState.READY or replica.card is None or not self._has_text:
            raise self.not_ready()
        return ReadyModel(self.name, self, self.text, replica.card, adapter)

    def not_ready(self) -> ApiError:
        return unavailable(f"The model {self.name!r} is not ready: {self.state_text}.", "model_not_ready")

    @property
    def state_text(self) -> str:
        """The state in words for people, such as `starting (load weights, 40 %)`."""
        state = self.state
        if state is ReplicaState.STARTING:
            stage, fraction = self.progress
            return f"starting ({stage}, {fraction:.0%})"
        return "loading its tokenizer" if state is ReplicaState.READY and not self._has_text else str(state)

    async def load_text(self, threads: Executor | None, limits: SandboxLimits) -> None:
        """Read tokenizer and template from the checkpoint, once; a failure is kept for `/ready` and for requests."""
        if self._has_text:
            return
        run = partial(asyncio.get_running_loop().run_in_executor, threads)
        try:
            directory = self.directory
            if self.config.tokenizer:
                directory = await run(resolve_tokenizer, self.config.tokenizer)
            if self.config.external is not None:  # there is no checkpoint
                self.directory = directory
            template = await run(ChatTemplate.load, directory, self.config.chat_template, limits)
            self._template = template
            self.text, _ = await asyncio.gather(run(self._load_text, directory, template), template.start())
        except Exception as error:
            self.load_error = f"cannot load the tokenizer of {self.name!r}: {error}"
            raise
        finally:
            self.replicas.tell_changed()

    def _load_text(self, directory: Path, template: ChatTemplate) -> ModelText:
        tokenizer = Tokenizer.load(directory, self.directory, self.config.generation_config)
        defaults = read_generation_config(self.directory, self.config.generation_config).defaults
        if ignored := ignored_fields(self.directory, self.config.generation_config):
            message = f"generation_config.json: {', '.join(ignored)} not applied: requests may ask for what they do"
            _log.warning(message, extra={"model": self.name})
        _log.info("sampling parameters by default", extra={"model": self.name, **asdict(defaults)})
        if template.exists:
            tokenizer.prepare_words()
        return ModelText(
            tokenizer,
            template,
            LogprobsEncoder(tokenizer),
            find_format(self.config.tool_format, template.source, lambda token: bool(tokenizer.ids_of((token,)))),
            find_reasoning_format(self.config.reasoning_format, template.source),
            checkpoint_fingerprint(self.directory),
            defaults,
        )

    async def close(self) -> None:
        if self._template is not None:
            await self._template.close()


def sandbox_limits(config: GatewayConfig) -> SandboxLimits:
    return SandboxLimits(config.client_work_timeout_s, config.client_work_memory_bytes)


class ReplicasByModel(Mapping[str, Mapping[str, ReplicaClient]]):
    """The replicas of each model, of all its versions, by their names."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def __getitem__(self, model: str) -> Mapping[str, ReplicaClient]:
        served = self._models[model]
        return {name: client for each in served.all_versions for name, client in each.replicas.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._models))

    def __len__(self) -> int:
        return len(self._models)


def replicas_with_tiers(models: Iterable[ServedModel]) -> list[Mapping[str, ReplicaClient]]:
    """The replicas of models, in all their versions, that keep KV blocks beyond the cache."""
    versions = [each for model in models for each in model.all_versions]
    return [each.replicas for each in versions if each.config.kv_tiers is not None]
