"""Settings of models that another server runs, and of time-outs, circuit breakers and retries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvarn.config.section import Section

BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$")]
Seconds = Annotated[float, Field(gt=0)]


class TimeoutsConfig(Section):
    """Time limits of the stages of an answer. A stage that takes longer ends with 504 `timeout`, or `fallback`
    answers."""

    connect_s: Seconds | None = None
    """Seconds to connect to an external server. Default: 5."""

    first_token_s: Seconds | None = None
    """Seconds from the sending of a request to the first token of its answer. Default: 120 for external models, else
    as long as it takes."""

    between_tokens_s: Seconds | None = None
    """Seconds from one token to the next. Default: 60 for external models, else as long as it takes."""

    total_s: Seconds | None = None
    """Seconds for the whole answer. Default: as long as it takes."""


class BreakerConfig(Section):
    """A circuit breaker: what fails too often is left alone for a while. Each external replica has one, and each model
    that has a fallback."""

    window_s: float = Field(30.0, gt=0)
    """Seconds for which a result counts."""

    min_requests: int = Field(5, ge=1)
    """Results in the window below which it does not open."""

    error_rate: float = Field(0.5, gt=0, le=1)
    """Share of failures at which it opens."""

    open_s: float = Field(5.0, gt=0)
    """Seconds it stays open, before a request is let through as a trial; doubles with each trial that fails."""

    max_open_s: float = Field(60.0, gt=0)
    """Seconds it stays open at most."""

    trials: int = Field(1, ge=1)
    """Trials that must succeed before it closes."""


class RetriesConfig(Section):
    """Requests that are sent again, to another replica where there is one, before the first token of their answer."""

    share: float = Field(0.2, ge=0, le=1)
    """Retries at most, as a share of the requests of the window: retries never multiply an overload."""

    min_retries: int = Field(3, ge=0)
    """Retries that are allowed in each window, however few requests there are."""

    window_s: float = Field(10.0, gt=0)
    """Length of the window. Seconds."""


class ExternalPrice(Section):
    """Price of an external model's tokens, where `metering.prices` has none of it."""

    input_per_million: float = Field(0.0, ge=0)
    """Price of a million prompt tokens."""

    cached_per_million: float | None = Field(None, ge=0)
    """Price of a million prompt tokens that the server reports as cached. Default: as the others."""

    output_per_million: float = Field(0.0, ge=0)
    """Price of a million output tokens."""


class ExternalConfig(Section):
    """A server with OpenAI's API that runs the model: vLLM, SGLang, llama.cpp, Ollama, another Kvarn, a hosted API. See
    docs/guides/external_models.md."""

    base_url: BaseUrl | tuple[BaseUrl, ...]
    """Root of its API, such as `http://10.0.0.7:8000/v1`. Several URLs are several replicas of the model."""

    model: str | None = Field(None, min_length=1)
    """The model's name there. Default: its name here."""

    api: Literal["openai", "vllm", "kvarn", "sglang", "llama_cpp", "ollama"] = "openai"
    """Kind of server, which decides the fields it knows besides OpenAI's. A request with an unknown field is refused if
    the answer would differ without it."""

    api_key_env: str | None = Field(None, min_length=1)
    """Environment variable with the API key. Default: none is sent."""

    api_key_file: str | None = Field(None, min_length=1)
    """File with the API key. It is read again at each probe."""

    streams: bool = True
    """Ask for streams always, so that the time-outs between tokens hold and each token is counted when it comes. Off:
    answers are asked for whole, for servers that cannot stream."""

    max_output_tokens: int = Field(16384, ge=1)
    """Tokens of an answer at most where neither the request nor the context's length bounds it: it is reserved of
    budgets and sent to the server as the answer's bound."""

    embedding_size: int | None = Field(None, ge=1)
    """Numbers in a vector, of models of the kind `embed`. Default: unknown until the first answer."""

    max_concurrency: int | None = Field(None, ge=1)
    """Requests that each gateway process has in flight at each of its replicas at most; more get 503, or are answered
    by `fallback`. Default: no limit."""

    probe: Literal["models", "health", "none"] = "models"
    """Readiness check. `models`: ready if the server's list of models has this one; `health`: ready if `/health`
    answers 200, for servers that list other models, or none; `none`: always ready, and the circuit breaker does the
    rest."""

    probe_interval_s: float = Field(5.0, gt=0)
    """Seconds between readiness checks."""

    probe_timeout_s: float = Field(5.0, gt=0)
    """Seconds that a readiness check may take."""

    retries: RetriesConfig = RetriesConfig()
    """Attempts to send a failed request again."""

    price: ExternalPrice | None = None
    """Price of its tokens. Default: that of `metering.prices`."""

    @model_validator(mode="after")
    def _fields_agree(self) -> ExternalConfig:
        if not self.base_urls:
            raise ValueError("base_url is empty: give the address of a server")
        if len(set(self.base_urls)) < len(self.base_urls):
            raise ValueError("base_url has the same address twice")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file are both set: keep one")
        return self

    @property
    def base_urls(self) -> tuple[str, ...]:
        urls = (self.base_url,) if isinstance(self.base_url, str) else self.base_url
        return tuple(url.rstrip("/") for url in urls)
