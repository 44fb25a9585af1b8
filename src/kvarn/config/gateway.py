"""Settings of the HTTP front door."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Any, Final

from pydantic import Field, field_validator, model_validator

from kvarn.config.section import Section

OLD_NAMES: Final = {
    "template_timeout_s": "client_work_timeout_s",
    "template_memory_bytes": "client_work_memory_bytes",
}
"""Names of settings that configurations of earlier releases use."""


class GatewayConfig(Section):
    """HTTP settings of the gateway."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and prints it."""

    api_server_count: int = Field(1, ge=1, le=64)
    """Gateway processes that serve the port. More than one pays where short requests or many streams keep one process
    busy and there are cores to spare; see docs/internals/architecture.md. Limits and budgets stay exact over all of
    them."""

    root_path: str = Field("", pattern=r"^(/[^/?#\s]+)*$")
    """Path prefix under which a proxy publishes the server, such as `/llm`. Requests are answered with it and
    without."""

    allowed_origins: tuple[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")], ...] | None = None
    """Origins of web pages, such as `https://chat.example.com`, whose scripts may read answers in a browser (CORS).
    Default: pages that this machine serves (localhost and loopback addresses). A listed origin may use an open server
    without a key, as clients on this machine may; `*` allows every page, and none without a key. Empty: none."""

    ssl_certfile: str | None = Field(None, min_length=1)
    """PEM file of the certificate (and its chain): the server speaks HTTPS. A new one is used within half a minute.
    Default: plain HTTP."""

    ssl_keyfile: str | None = Field(None, min_length=1)
    """PEM file of the certificate's private key. Default: in `ssl_certfile`."""

    forwarded_allow_ips: tuple[str, ...] = ()
    """Addresses or networks of proxies in front of the server, such as `10.0.0.0/8`, whose `X-Forwarded-For` and
    `X-Forwarded-Proto` are believed: they tell the client's address, and whether it came by HTTPS. `*` believes
    everybody, for a server that only proxies reach. Default: nobody."""

    max_connections: int = Field(16384, ge=1)
    """Connections that each gateway process makes room for: its limit of open files is raised at the start. How many
    of them are answered at once is `max_requests`."""

    max_requests: int = Field(8192, ge=1)
    """Requests answered, or waiting, at once at most, in each gateway process. One more gets 503 before it is read."""

    idle_timeout_s: float = Field(75.0, gt=0)
    """Seconds a connection is kept after an answer. Longer than the usual 60 s of load balancers, so that it is they
    who close. Rounded up to whole seconds."""

    write_timeout_s: float = Field(60.0, gt=0)
    """Seconds for which a client may leave its answer unread, once the socket's buffers are full, before the connection
    is cut and the request ended."""

    max_header_bytes: int = Field(64 * 1024, ge=1024)
    """A request's target and headers together. Longer ones get 431."""

    max_headers: int = Field(100, ge=8)
    """Headers of a request at most; more get 431."""

    max_held_bytes: int = Field(512 * 1024 * 1024, ge=1024 * 1024)
    """Memory that all running requests may hold together: their bodies, tokens that a slow client has not read yet, and
    log-probabilities and vectors of an answer that is sent as a whole. One organisation may hold three times what is
    left free, which is three quarters where no other holds any. A request that would pass its organisation's share
    gets 429, one for which others leave too little 503, both with Retry-After; one that would not even fit by itself
    413. In the middle of an answer the request is ended with that error. Each gateway process has its own."""

    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    """Largest request body. A longer one gets 413 before it is read to its end."""

    body_timeout_s: float = Field(30.0, gt=0)
    """Seconds a request's body may take to arrive, and one more for each 64 KiB of it, before the client gets 408."""

    max_stop_strings: int = Field(16, ge=0)
    """Stop strings in one request at most."""

    max_stop_string_chars: int = Field(1024, ge=1)
    """Characters of one stop string at most."""

    max_n: int = Field(32, ge=1)
    """Choices (`n`, `best_of`) in one request at most."""

    max_prompts: int = Field(128, ge=1)
    """Prompts in one `/v1/completions` request at most."""

    max_embedding_inputs: int = Field(2048, ge=1)
    """Inputs in one `/v1/embeddings` request at most."""

    max_logprobs: int = Field(20, ge=0)
    """Alternatives per token that `logprobs` may ask for at most."""

    tokenize_threads: int = Field(2, ge=1)
    """Threads that tokenize, so that a long prompt never blocks the event loop. Organisations take turns at them."""

    client_work_timeout_s: float = Field(2.0, gt=0)
    """Seconds of a processor that one piece of work on what a client or a checkpoint sends may take: rendering a chat,
    compiling the chat templates of a checkpoint, a grammar or a JSON schema, checking a finished answer. It is done in
    processes that are killed when they pass a limit and started again at once; the request gets 400. Five times as many
    seconds may pass on a busy machine. `template_timeout_s` is its old name."""

    client_work_memory_bytes: int = Field(512 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory of each such process (its address space). macOS has no such limit: there only time is bounded.
    `template_memory_bytes` is its old name."""

    vllm_metric_names: bool = True
    """Give the metrics under vLLM's names (`vllm:...`), too, for boards and scrapers made for it. They cost nothing but
    the length of `/metrics`."""

    metrics_by_organization: bool = False
    """Give the tokens served to each organisation in `/metrics`, which then tells everybody who may read it the ids of
    organisations, and how much they use."""

    drain_timeout_s: float = Field(30.0, ge=0)
    """Seconds that running requests get to finish when the server is stopped."""

    shutdown_delay_s: float = Field(0.0, ge=0)
    """Seconds for which a server that is stopped still takes requests: `/ready` is 503 at once, and each answer closes
    its connection. Behind a load balancer, longer than that takes to send requests elsewhere (5 in Kubernetes)."""

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            if network != "*":
                ip_network(network)  # says what is wrong
        return networks

    @model_validator(mode="before")
    @classmethod
    def _rename_old_settings(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        renamed = {OLD_NAMES.get(name, name): value for name, value in given.items()}
        for old, name in OLD_NAMES.items():
            if old in given and name in given:
                raise ValueError(f"{old} is the old name of {name}: give one of them")
        return renamed

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> GatewayConfig:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile, the certificate that belongs to the key")
        return self
