"""Settings of one served model: an entry of `models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvarn.config.adapters import AdapterConfig, LoraConfig
from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.engine import EngineConfig, ExpertsConfig
from kvarn.config.external import BreakerConfig, ExternalConfig, TimeoutsConfig
from kvarn.config.fleet import AutoscaleConfig, HardwareConfig, UpdateConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.replica import FailoverConfig, RoutingConfig
from kvarn.config.routes import FallbackConfig
from kvarn.config.section import Section, TextOrOff
from kvarn.config.speculation import SpeculationConfig


class ModelConfig(Section):
    """One served model."""

    name: str = Field(min_length=1)
    """Name clients use in the `model` field."""

    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """More names under which clients reach the model. Answers, limits, key scopes and usage carry `name`."""

    path: str = ""
    """Directory of a Hugging Face checkpoint (safetensors), a hub id, or the name of a packaged model
    (`kvarn-demo`). Needed unless the model is `external`."""

    external: ExternalConfig | None = None
    """Another server runs the model. Default: Kvarn runs the checkpoint at `path`."""

    tokenizer: str | None = Field(None, min_length=1)
    """Directory or hub id of the tokenizer and its chat template. Default: the checkpoint's own."""

    chat_template: str | None = Field(None, min_length=1)
    """Path of a Jinja file, or the template itself (any text with a `{`). Default: the checkpoint's own."""

    seed: int | None = Field(None, ge=0, lt=1 << 63)
    """Seed of a random stream from which requests without a `seed` take theirs. A server with one gateway process,
    started with it and sent the same requests in the same order, gives the same answers; of several processes each has
    a stream of its own. Default: unpredictable seeds."""

    kind: Literal["auto", "generate", "embed", "score"] = "auto"
    """Task of the model. `auto` reads it from the checkpoint: its architecture, and sentence-transformers'
    `modules.json` beside a decoder that embeds or ranks. `score`: a Qwen3-Reranker that does not say so itself."""

    generation_config: str = Field("auto", min_length=1)
    """Source of the sampling parameters that a request leaves out. `auto`: the checkpoint's generation_config.json
    (temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens; `do_sample: false` is greedy), `none`:
    OpenAI's defaults, anything else: a folder with another generation_config.json."""

    dtype: Literal["auto", "bfloat16", "float32", "float16", "half"] = "auto"
    """Type of the weights. `auto`: bfloat16 with the compiled kernels, and with torch's where the processor multiplies
    it natively, else float32. `float16` (or `half`): float16 checkpoints keep their exact values, held and computed as
    float32; `auto` rounds them to bfloat16, with a warning. The kernels of GPUs take bfloat16 alone."""

    quantization: Literal["int8", "int4", "fp8"] | None = None
    """Quantise plain weights when the model is loaded. int8 and (on GPUs) fp8 have a scale for each output; int4 has
    one for 128 inputs and a sub-scale for 32. Weights that the checkpoint stores quantised stay as they are
    (docs/guides/quantization.md)."""

    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = "auto"
    """Type of cached keys and values. `auto`: the weights' type, bfloat16 where they are quantised. int8 (on
    processors) and fp8 (e4m3, on GPUs) hold twice as many tokens as bfloat16."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU (`cuda`) or this machine's processors. `auto`: a GPU from capability 9.0 on. See docs/start/gpu.md."""

    kernels: Literal["auto", "cpu", "triton", "torch"] = "auto"
    """The compiled `cpu` kernels, those of GPUs (`triton`), or `torch`'s. `auto`: what the device has, if installed."""

    packed_cache: TextOrOff = Field("auto", min_length=1)
    """Cache of packed weights for later starts: a directory, `off`, or `auto` (see docs/guides/quantization.md)."""

    max_context_length: int | None = Field(None, ge=16)
    """Tokens of prompt and answer together. Default: the length that the model was trained for, or fewer, with a
    warning, if no more fit."""

    kv_cache_gib: float | None = Field(None, gt=0)
    """Memory of the KV cache in GiB. Default: a tenth of the machine's, up to a third if needed (all but a tenth if one
    sequence needs it); on a GPU what weights leave of the share; at most `max_num_seqs` full contexts."""

    threads: int | None = Field(None, ge=1)
    """Threads of the engine's kernels. Default: one for each physical core the engine may use (affinity, container
    limits and `replica.separate_cores` respected); one in all for a model of less than 64 MiB."""

    tensor_parallel_size: int = Field(1, ge=1, le=8)
    """Processes that share each layer of the model (tensor parallelism), each with its part of the weights and of the
    KV cache: 1, 2, 4 or 8. See docs/guides/parallel.md."""

    pipeline_parallel_size: int = Field(1, ge=1, le=64)
    """Stages of consecutive layers (pipeline parallelism), each in `tensor_parallel_size` processes of its own."""

    prefill_context_parallel_size: int = Field(1, ge=1, le=16)
    """Copies of all these processes, which share the tokens of long prompts (prefill context parallelism)."""

    expert_parallel: bool = False
    """Processes that share a layer hold whole experts of a mixture, in place of a part of each."""

    experts: ExpertsConfig = ExpertsConfig()
    """Assignment of experts to processes."""

    tensor_parallel_invariant: bool = False
    """Compute sums in the order of several processes, so that one process gives the bits of any `tensor_parallel_size`
    above 1."""

    hardware: HardwareConfig = HardwareConfig()
    """Resources of a machine that one replica needs."""

    autoscale: AutoscaleConfig | None = None
    """Scale the replicas by the work that arrives. Default: always `replicas`."""

    update: UpdateConfig = UpdateConfig()
    """Replacement of replicas by those of another version."""

    replicas: int = Field(1, ge=1, le=256)
    """Engine processes that serve the model on this machine, each with weights and KV cache of its own; the cores are
    shared among them. When one fails, the others go on with its answers."""

    spot: Literal["batch", "any"] | None = None
    """The replicas run on capacity that may be taken away at short notice. `batch`: they take requests of the batch
    tier alone, and the server is ready without them. `any`: they take all. See docs/operate/spot.md."""

    routing: RoutingConfig = RoutingConfig()
    """Choice of the replica that answers a request."""

    failover: FailoverConfig = FailoverConfig()
    """Recovery of answers whose engine is lost."""

    fallback: Annotated[str, Field(min_length=1)] | tuple[FallbackConfig, ...] | None = None
    """Models that answer when this one cannot begin: a list, tried in this order, or the name of a smaller served model
    that answers when this one would answer too late (`on: [overload]`). `overload` needs load shedding."""

    timeouts: TimeoutsConfig = TimeoutsConfig()
    """Time limits of the stages of an answer."""

    breaker: BreakerConfig = BreakerConfig()
    """Circuit breaker for a replica that fails, or a model that has a fallback."""

    load_shedding: bool | None = None
    """Refuse this model's requests that would miss its latency targets. Default: `admission.load_shedding`."""

    ttft_target_s: float | None = Field(None, gt=0)
    """This model's target for the time to first token. Seconds. Default: `slo.ttft_target_s`."""

    tpot_target_s: float | None = Field(None, gt=0)
    """This model's target for the time per output token. Seconds. Default: `slo.tpot_target_s`."""

    tool_format: Literal[
        "auto", "hermes", "llama3", "mistral", "pythonic", "gpt_oss", "deepseek", "glm", "granite", "phi"
    ] = "auto"
    """Format of the model's tool calls (`hermes`: also Qwen; `pythonic`: Llama 3.2 and 4). `auto`: read from the chat
    template and the special tokens. See docs/guides/tools.md."""

    adapters: tuple[AdapterConfig, ...] = ()
    """LoRA adapters that are loaded with the model. More can be loaded while it runs; see docs/guides/adapters.md."""

    lora: LoraConfig = LoraConfig()
    """Loading of adapters while the model runs."""

    kv_tiers: KVTiersConfig | None = None
    """Keep KV blocks in memory beside the cache, and on disk. Default: blocks that the cache gives up are computed
    again."""

    reasoning_format: Literal["auto", "none", "qwen3", "deepseek_r1", "gpt_oss", "granite", "mistral", "seed_oss"] = (
        "auto"
    )
    """Format of the model's reasoning, which is split from its answer. `qwen3`: `<think>` tags, as most models write
    it; `deepseek_r1`: the same, and answers begin inside the tags. `auto`: read from the chat template; `none`:
    reasoning stays part of the answer's text. See docs/guides/reasoning.md."""

    disaggregation: DisaggregationConfig | None = None
    """Compute long prompts in a second engine process. Default: one process does all."""

    engine: EngineConfig = EngineConfig()
    """Scheduling of this model's replica."""

    golden_prompts: str | None = Field(None, min_length=1)
    """File of golden prompts, with which replicas and new versions of the model are checked: JSON Lines with `id`,
    `messages` (or `prompt_token_ids`) and `answer`. Default: built-in token ids, for which no answer is right. See
    docs/operate/quality.md."""

    speculation: SpeculationConfig = SpeculationConfig()
    """Speculative decoding."""

    @model_validator(mode="after")
    def _runs_somewhere(self) -> ModelConfig:
        if not self.path and self.external is None:
            raise ValueError(f"the model {self.name!r} needs a `path`, or `external`: a server that runs it")
        if self.path and self.external is not None:
            raise ValueError(f"the model {self.name!r} has a `path` and is `external`: leave one out")
        if self.external is not None:
            own = {"adapters": (), "kv_tiers": None, "disaggregation": None, "replicas": 1, "spot": None}
            for name, default in own.items():
                if getattr(self, name) != default:
                    raise ValueError(f"{name} of {self.name!r} is its server's matter: the model is `external`")
            if self.kind == "score":
                raise ValueError(f"kind of {self.name!r} cannot be score: an `external` model generates or embeds")
        return self

    @model_validator(mode="after")
    def _ranks_can_do_it(self) -> ModelConfig:
        if self.tensor_parallel_size not in (1, 2, 4, 8):
            raise ValueError(f"tensor_parallel_size of {self.name!r} must be 1, 2, 4 or 8")
        stages, copies = self.pipeline_parallel_size > 1, self.prefill_context_parallel_size > 1
        used = {
            "adapters (with several stages)": self.adapters and stages,
            "an EAGLE-3 head (stages or shared prompts)": (stages or copies) and self.speculation.chosen == "eagle3",
        }
        if found := [name for name, value in used.items() if value]:
            raise ValueError(f"{self.name!r} in several processes cannot have {found[0]}: leave it out, or these")
        return self

    @model_validator(mode="after")
    def _one_pair(self) -> ModelConfig:
        if self.disaggregation is not None and self.replicas > 1:
            raise ValueError("disaggregation is for a model with one replica: leave out one of both")
        return self

    @property
    def fallbacks(self) -> tuple[FallbackConfig, ...]:
        if isinstance(self.fallback, str):
            return (FallbackConfig(model=self.fallback, on=("overload",)),)
        return self.fallback or ()
