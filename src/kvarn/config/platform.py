"""Settings of what stands around the models: who may use them, how much, and what is kept."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvarn.config.section import Section

Money = Annotated[float, Field(ge=0)]


class AuthConfig(Section):
    """Access to the server."""

    mode: Literal["auto", "keys", "open"] = "auto"
    """`keys`: every request needs an API key. `open`: none is needed, and a request without one acts for the default
    organisation as its administrator; refused on an address that other machines reach. `auto`: open on a loopback
    address, keys on any other."""

    allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9._-]+$")], ...] = ()
    """Names under which an open server answers requests without a key, besides `localhost` and loopback addresses: the
    `Host` of a proxy in front of it, or `host.docker.internal`. Without ports, in lower case."""

    api_keys: tuple[Annotated[str, Field(pattern=r"^[!-~]+$")], ...] = Field((), repr=False)
    """Keys of the configuration, besides those in the database: each uses the models for the default organisation and
    administers nothing. Printable ASCII without spaces. With any, `auto` asks for keys on a loopback address too.
    `kvarn serve --api-key` and the environment variable `KVARN_API_KEY` (one key) set it."""

    refresh_s: float = Field(0.25, gt=0, le=60)
    """Seconds after which a change made by another gateway (a revoked key, a new limit) is noticed at the latest. A
    change made through this gateway holds at once."""

    stale_s: float = Field(300.0, ge=0)
    """Seconds for which keys seen since the last known change of any key, project or limit go on working while the
    database is away."""


class StoreConfig(Section):
    """Database of tenants, keys, the ledger and conversations."""

    url: str | None = Field(None, min_length=1, repr=False)
    """Database: `sqlite:////path/kvarn.db` or `postgresql://user:password@host/name`, there with libpq's options
    for SSL, such as `?sslmode=verify-full&sslrootcert=/path/ca.pem`, and several hosts of
    which one takes writes (`//user@a:5432,b:5432/name`). Default: `kvarn.db` in `data_dir`."""

    pool_size: int = Field(8, ge=1, le=256)
    """Connections to PostgreSQL at most, and two more for reports. SQLite has one writer and needs none of this."""

    timeout_s: float = Field(5.0, gt=0)
    """Seconds a query may take before the database counts as away. A change of the schema takes as long as it takes."""

    report_timeout_s: float = Field(60.0, gt=0)
    """Seconds a report (usage, costs, `kvarn usage`) may take."""

    blobs: str | None = Field(None, min_length=1)
    """Storage of file contents: a folder or an fsspec URL (`file:///srv/kvarn`, `s3://bucket/kvarn`, which needs
    the extra `s3`), the same for all servers of a deployment; or `database`: in its rows. Default: with SQLite a folder
    beside the database, with PostgreSQL `database`. Contents in rows are moved out after the start."""

    old_blobs: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Places that `blobs` named before: contents are read there too, and moved to `blobs` after the start (`kvarn blobs
    status` tells what is left). With SQLite the folder beside the database is one without being named."""

    migrate: bool = True
    """Upgrade the schema at the start. Off: the start fails on an old schema and names `kvarn store upgrade`."""

    @model_validator(mode="after")
    def _places_differ(self) -> StoreConfig:
        if self.blobs is not None and self.blobs in self.old_blobs:
            raise ValueError("old_blobs names the place that blobs names: leave it out")
        return self


class LimitsConfig(Section):
    """Requests and tokens per minute, and how many requests may run at once."""

    redis_url: str | None = Field(None, pattern=r"^(rediss?|unix)://", repr=False)
    """`redis://host:6379/0`: gateways share their counts there, and what they reserve of budgets. Default: both are
    kept in the main gateway process, exact for all processes of one server."""

    when_away: Literal["open", "closed"] = "open"
    """While Redis is away: `open` counts in each server alone, `closed` answers 503 to requests under a limit or a
    budget."""

    timeout_s: float = Field(0.25, gt=0)
    """Seconds Redis may take to answer before it counts as away."""

    requests_per_minute: int | None = Field(None, ge=1)
    """Limits of each organisation that has none of its own, for each model. Default: no limit."""

    tokens_per_minute: int | None = Field(None, ge=1)
    """Prompt and output tokens, as above. Default: no limit."""

    concurrency: int | None = Field(None, ge=1)
    """Requests running at once, as above. Default: no limit."""

    output_estimate: int = Field(256, ge=1)
    """Output tokens reserved for an answer whose client set no `max_tokens`, until answers of its organisation and
    model have been seen."""

    output_quantile: float = Field(0.9, gt=0, le=1)
    """Quantile of the lengths of the latest hundred such answers that is reserved afterwards."""


class KafkaConfig(Section):
    """Publication of usage events."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers, as `host:port,host:port`."""

    topic: str = Field("kvarn.usage", min_length=1)
    """Topic of the usage events; the key of each message is the event's id."""

    group: str = Field("kvarn-meter", min_length=1)
    """Consumer group of `kvarn meter`."""

    settings: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """More settings of librdkafka, such as `security.protocol`."""


class PriceConfig(Section):
    """Prices of a model's tokens from a day on."""

    model: str = Field(min_length=1)
    """Name of the model, or `*` for all that have no price of their own."""

    since: str = Field("1970-01-01", pattern=r"^\d{4}-\d{2}-\d{2}$")
    """First day (UTC) on which the price holds, as `YYYY-MM-DD`."""

    input_per_million: Money = 0.0
    """Price of a million computed prompt tokens, in `metering.currency`."""

    cached_per_million: Money | None = None
    """Price of a million prompt tokens found in the prefix cache. Default: as computed ones."""

    output_per_million: Money = 0.0
    """Price of a million output tokens."""

    per_request: Money = 0.0
    """Price of a request besides its tokens; where `model` is `tool:TYPE`, such as `tool:web_search`, of each call."""

    per_cached_answer: Money = 0.0
    """Price of an answer out of the response cache, instead of all these."""

    @field_validator("since")
    @classmethod
    def _is_a_day(cls, since: str) -> str:
        try:
            date.fromisoformat(since)
        except ValueError as error:
            raise ValueError(f"{since!r} is no day, written as YYYY-MM-DD: {error}") from None
        return since


class MeteringConfig(Section):
    """The usage ledger."""

    kafka: KafkaConfig | None = None
    """Publish every usage event to Kafka. Default: the ledger is the table in the database."""

    currency: str = Field("usd", pattern=r"^[a-z]{3}$")
    """Currency of prices, costs and budgets. It can be changed when there are no budgets of money."""

    prices: tuple[PriceConfig, ...] = ()
    """Prices by model and day. Without one, tokens cost nothing and are counted all the same."""

    flush_interval_s: float = Field(0.05, gt=0)
    """Seconds for which finished events are gathered into one transaction."""

    max_spool_bytes: int = Field(1 << 30, ge=1 << 20)
    """Usage events kept on disk at most while the database is away; about 500 bytes each."""

    budget_refresh_s: float = Field(1.0, gt=0)
    """Seconds after which spending through other gateways, and changes of budgets, are noticed at the latest."""

    @model_validator(mode="after")
    def _prices_are_unique(self) -> MeteringConfig:
        keys = [(price.model, price.since) for price in self.prices]
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        if doubled:
            raise ValueError(f"two prices of {doubled[0][0]!r} hold from {doubled[0][1]}: keep one")
        return self


class SloConfig(Section):
    """Latency targets of interactive requests. Goodput (`kvarn_slo_requests_total`, `kvarn_goodput_ratio`) and load
    shedding count against the same ones; a model may have its own."""

    ttft_target_s: float = Field(2.0, gt=0)
    """Time to first token. Seconds."""

    tpot_target_s: float = Field(0.2, gt=0)
    """Time per output token: the mean gap after the first. Seconds."""


class AdmissionConfig(Section):
    """Queueing and refusal of requests at the gateway."""

    load_shedding: bool = False
    """Predict each interactive request's TTFT and TPOT, hold back what would slow others beyond the targets under
    `slo`, and refuse what would miss them (or let `fallback` answer it). Off: nothing is refused before a queue is
    full. A model may have its own setting."""

    max_queue: int = Field(4096, ge=0)
    """Requests that may wait at the gateway for each model. One more is refused at once (`queue_full`)."""

    max_queue_s: float | None = Field(None, gt=0)
    """Seconds a request without latency targets (batch; with load shedding also `flex`) may wait at the gateway before
    it is refused (`queue_timeout`). Default: as long as it takes."""


class KeptConfig(Section):
    """Requests that are kept in the database when they are over, for the console and `kvarn requests`; without their
    prompts and answers. The rates hold for one server: its gateway processes divide them. See
    docs/operate/requests.md."""

    enabled: bool = True
    """Keep requests."""

    ordinary_per_s: float = Field(20.0, ge=0)
    """Requests kept a second of those that neither failed nor were slow."""

    one_in: int = Field(1, ge=1)
    """One in this many of those is kept at most, drawn at random."""

    refused_per_s: float = Field(5.0, ge=0)
    """Requests kept a second of those that were refused (4xx)."""

    notable_per_s: float = Field(100.0, ge=0)
    """Requests kept a second of those that failed (5xx) or were among the slowest."""

    slowest: float = Field(0.01, ge=0, le=1)
    """Share of each model's requests in an hour that counts as slow: those are always kept, with the steps of the
    engine that they were in."""

    max_rows: int = Field(100_000, ge=100)
    """Requests kept at most. Where there are more, the organisations that have the most of them lose their oldest
    ordinary ones first."""

    max_bytes: int = Field(512 * 1024**2, ge=1024**2)
    """Bytes kept at most, in the same way; each request counts 1 KiB more than what is kept of it."""


class TracesConfig(Section):
    """Traces of requests. OpenTelemetry's standard variables (`OTEL_...`) hold where a setting is not set."""

    endpoint: str | None = Field(None, min_length=1)
    """Collector that takes OTLP over HTTP, such as `http://localhost:4318`: each request's spans are sent there.
    Default: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`; where neither is set, no traces are
    sent."""

    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of what is sent there, such as a key, besides those of `OTEL_EXPORTER_OTLP_HEADERS`."""

    contents: bool = False
    """Send prompts and answers with the spans (`gen_ai.input.messages`, `gen_ai.output.messages`): the collector then
    holds what users write."""

    vllm_attributes: bool = False
    """Add the attributes of vLLM's spans (`gen_ai.latency.time_in_queue`, ...), for tools that read those."""

    kept: KeptConfig = KeptConfig()
    """Requests that are kept in the database."""


class SafetyConfig(Section):
    """Checks of prompts and answers."""

    moderate_input: bool = False
    """Refuse prompts that the classifier or a rule flags."""

    moderate_output: bool = False
    """End answers that the classifier or a rule flags, and say so."""

    threshold: float = Field(0.5, gt=0, lt=1)
    """Score from which a category counts as flagged."""

    hold_back_chars: int = Field(64, ge=0, le=4096)
    """Characters of an answer that are held back while it is moderated, so that what becomes harmful only with its
    next words is not shown."""

    model: str | None = Field(None, min_length=1)
    """Name of a served chat model that moderates. Default: the small built-in classifier."""

    model_prompt: str | None = None
    """System prompt of that model. Default: instructions that ask for `safe` or `unsafe` and OpenAI's categories.
    Empty: nothing, for models that carry their own (Llama Guard)."""

    model_timeout_s: float = Field(10.0, gt=0)
    """Seconds that the model may take for one text. A prompt that could not be checked is refused; an answer is
    ended."""

    rules: tuple[str, ...] = ()
    """Regular expressions (RE2) that flag a text by themselves, as category `rule`."""

    log_prompts_sample: float = Field(1.0, ge=0, le=1)
    """Share of the requests of projects that opted in whose prompts are kept, encrypted."""

    prompt_key_file: str | None = Field(None, min_length=1)
    """File with the Fernet keys that seal kept prompts, one a line; the first seals, all open. Gateways that share a
    database need the same one. Default: `prompts.key` in `data_dir`, made when first needed."""


class ResponsesConfig(Section):
    """`/v1/responses` in the background."""

    max_background: int = Field(1024, ge=1)
    """Background responses that one gateway works on at a time. One more is refused with 429."""

    wait_s: float = Field(3600.0, ge=0)
    """Seconds for which a background response is tried again while the model is busy or not ready."""

    lease_s: int = Field(15, ge=3)
    """Seconds after which another gateway takes over the background responses of one that has died, and after which a
    conversation is free again in which it was making a response."""


class RetentionConfig(Section):
    """Time that data is kept. Organisations may choose less."""

    conversations_days: int | None = Field(None, ge=1)
    """Days after their last change. Default: until they are deleted."""

    responses_days: int = Field(30, ge=1)
    """Days that stored responses and chat completions are kept."""

    files_days: int | None = Field(None, ge=1)
    """Days that files without an expiry of their own, and batches that are over, are kept. Default: until they are
    deleted."""

    prompt_samples_days: int = Field(30, ge=1)
    """Days that sampled prompts are kept."""

    feedback_days: int | None = Field(365, ge=1)
    """Days that feedback on answers, and runs of evaluation sets, are kept. None: until they are deleted."""

    kept_requests_days: int = Field(14, ge=1)
    """Days that requests which are over are kept (`traces.kept`)."""

    sweep_interval_s: float = Field(600.0, gt=0)
    """Seconds between two sweeps, which delete what has expired. One of several gateways does it."""

    max_file_bytes: int = Field(200 * 1024 * 1024, ge=1024)
    """Largest file that may be uploaded."""

    max_stored_bytes: int = Field(10 * 1024**3, ge=1024 * 1024)
    """Bytes that one organisation may store: files, responses, chat completions, conversations, batches with their
    lines and answers, sampled prompts, feedback, evaluation sets and their runs; each with 1 KiB more, items of
    conversations with 256 bytes more. Files are counted exactly, the rest is summed every 30 seconds. What would be
    stored beyond that is refused with 413 before any work is done for it; what has been made is kept."""


class BatchesConfig(Section):
    """Running of batches, on capacity that the engines have left over."""

    enabled: bool = True
    """Run batches in this gateway. Off: it takes them, and another one on the same database runs them."""

    max_lines: int = Field(50_000, ge=1)
    """Requests in one batch at most."""

    max_line_bytes: int = Field(1024 * 1024, ge=1024)
    """Largest line of a batch's input."""

    max_in_flight: int = Field(32, ge=1)
    """Lines for each model that this gateway has in flight at once at most, waiting for admission or in the engine."""

    max_running: int = Field(8, ge=1)
    """Batches this gateway works on at once; the rest wait."""

    lease_s: float = Field(30.0, ge=1)
    """Seconds after which the batches of a gateway that died are taken over by another."""

    poll_s: float = Field(1.0, gt=0)
    """Seconds between polls for new batches."""
