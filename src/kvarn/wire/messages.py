"""Messages between gateway processes and an engine process: token ids in, token ids out.

Each direction is one tagged union, encoded with msgpack. Frozen, typed, no pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from kvarn.costs.step_times import StepTimes
from kvarn.wire.block_events import BlockEvents, WatchBlocks
from kvarn.wire.engine_stats import AdapterStats, ExpertStats, LookupStats, SessionStats, SpeculationStats, WorkStats
from kvarn.wire.message import Message
from kvarn.wire.questions import Ask, EngineAnswer
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionNews, SessionTurn
from kvarn.wire.supervision import FromSupervisor, ToSupervisor


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class RefusalReason(StrEnum):
    """Why an engine did not take, or gave up, a request. The gateway turns each into an HTTP status."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    PROMPT_TOO_LONG = "prompt_too_long"
    NEVER_FITS = "never_fits"
    DRAINING = "draining"
    DUPLICATE_ID = "duplicate_id"
    INVALID = "invalid"


OWN_PROCESS = -1  # number by which an engine's own process asks it, instead of a gateway process's

# To the engine ---------------------------------------------------------------------------------------------------


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Grammar that an answer's text must match."""

    text: str  # in llguidance's form: JSON of its grammars, or Lark

    after: list[str] = []
    """Strings before the match. If there are any, the answer begins with text of any kind; the text after the first of
    these strings must match. Special tokens count as the text they are written as."""

    opened_by: list[int] = []
    """Tokens that begin such free text. Where there are any, the answer may also match from its first token on."""


class Submit(Message, frozen=True, kw_only=True):
    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    tenant: str = ""
    weight: float = 1.0  # share of this tenant relative to others under saturation; > 0
    priority: int = 0  # tier: lower runs first (vLLM's meaning). 0 is interactive; batch work uses 10.
    cache_salt: str = ""  # prompts share cached blocks only with prompts of the same tenant and salt
    adapter: str = ""  # name of one that is loaded; empty for the model itself
    grammar: Grammar | None = None  # what each choice must match
    resume_token_ids: list[list[int] | None] = msgspec.field(default_factory=list)
    """Tokens that each choice of a request that goes on here has, None for one that has ended. The rest is the same."""

    goes_on: bool = False  # it was accepted by a replica that is lost: it is not refused for load, but waits
    ttft_left_s: float | None = None  # until its target for the first token is missed; None: it has none (any more)
    tpot_target_s: float | None = None  # seconds for each token after the first; None: it has no target
    gateway: int = 0  # number of the gateway process that asks, and is answered
    session: SessionTurn | None = None  # of which it is a turn; None: it stands for itself

    @property
    def choices(self) -> list[int]:
        """Numbers of the choices that are to be answered."""
        if not self.resume_token_ids:
            return list(range(self.sampling.n))
        return [index for index, tokens in enumerate(self.resume_token_ids) if tokens is not None]


class Embed(Message, frozen=True, kw_only=True):
    """Embed a list of token-id inputs with an encoder."""

    request_id: str
    inputs: list[list[int]]
    gateway: int = 0  # as in `Submit`


class Abort(Message, frozen=True, kw_only=True):
    """Forget a request of this gateway process and free its blocks before the next step. Unknown ids are ignored."""

    request_id: str
    gateway: int = 0


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that requests may name. What is known of it only once it is loaded has defaults."""

    name: str
    path: str  # its directory on the engine's machine
    organizations: list[str] | None = None  # who may see and use it; None: all
    projects: list[str] | None = None  # of these, all where None
    digest: str = ""  # of what it computes; `Submit.adapter` in the engine
    rank: int = 0
    nbytes: int = 0  # of host memory
    kv_blocks: int = 0  # of the KV cache, while it is used
    loaded_at: int = 0  # Unix seconds
    kept: bool = False  # as its deployment lists it; one that is not listed any more has been unloaded


class LoadAdapter(Message, frozen=True, kw_only=True):
    """Load an adapter, beside what runs; answered by `AdapterChanged`."""

    request_id: str
    adapter: AdapterInfo
    in_place: bool = False  # replace one of the same name; requests that have begun go on with that
    gateway: int = 0  # as in `Submit`


class UnloadAdapter(Message, frozen=True, kw_only=True):
    """Take no more requests for an adapter; those that have begun go on. Answered by `AdapterChanged`."""

    request_id: str
    name: str
    gateway: int = 0


class Join(Message, frozen=True, kw_only=True):
    """Another gateway process will send requests: answer them there, and send it statistics.

    So does the process that started the engine, which has the number 0. Numbers are never used again.
    """

    gateway: int
    address: str  # ZMQ address that it reads
    adapters: list[AdapterInfo] = msgspec.field(default_factory=list)
    """Adapters that it knows of; those of a revision above the engine's own are loaded again."""
    revision: int = 0  # of that list


class Leave(Message, frozen=True, kw_only=True):
    """Gateway processes are gone: abort their requests."""

    gateways: list[int]


class ForgetTenant(Message, frozen=True, kw_only=True):
    """A tenant is deleted: delete its cached blocks, on disk too, and keep none any more."""

    tenant: str


class Stop(Message, frozen=True, kw_only=True):
    """Exit."""


ToEngine = (
    Submit
    | Embed
    | Abort
    | LoadAdapter
    | UnloadAdapter
    | Join
    | WatchBlocks
    | Leave
    | ForgetTenant
    | SessionNews
    | FromSupervisor
    | Ask
    | Stop
)


# From the engine -------------------------------------------------------------------------------------------------


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token: of the model's own distribution, before temperature and penalties."""

    token_id: int
    logprob: float
    rank: int  # 1 for the most likely token of the vocabulary


_PACKED_LOGPROB = struct.Struct("<IId")


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position: of the token that stands there and of the most likely ones.

    Packed, 16 bytes each: an answer may have a million of them, which wait in memory for a client that reads slowly. As
    objects they would take seven times that, and the garbage collector's time.
    """

    packed: bytes
    """Token id, rank (both uint32) and log-probability (float64) of each, little-endian, the chosen token first."""

    @classmethod
    def of(cls, chosen: TokenLogprob, top: Sequence[TokenLogprob]) -> PositionLogprobs:
        pack = _PACKED_LOGPROB.pack
        return cls(b"".join([pack(each.token_id, each.rank, each.logprob) for each in (chosen, *top)]))

    @property
    def chosen(self) -> TokenLogprob:
        return self.entries()[0]

    @property
    def top(self) -> list[TokenLogprob]:
        """Log-probabilities of the most likely tokens, the likeliest first."""
        return self.entries()[1:]

    def entries(self) -> list[TokenLogprob]:
        """The chosen token's, then those of `top`."""
        ids, ranks, logprobs = self.columns()
        return [TokenLogprob(*entry) for entry in zip(ids, logprobs, ranks, strict=True)]

    def columns(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Token ids, ranks and log-probabilities of `entries`."""
        flat = struct.unpack("<" + "IId" * (len(self.packed) // _PACKED_LOGPROB.size), self.packed)
        return flat[::3], flat[1::3], flat[2::3]


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Tokens that one step added to one choice of a request.

    There is one for each row of each step, so it is small on the wire, and of no interest to the garbage collector: it
    holds no reference that could lead back to it.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None  # one for each of `token_ids` where asked for
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """One for each prompt token, None for the first; in the request's first delta of choice 0 only."""
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0  # prompt tokens found in the prefix cache; in the first delta of choice 0
    events: list[int] | None = None  # see `observe.timeline`; in the request's first delta with a token, and its last


class KVTierStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges of one tier of KV blocks beyond the device, and totals since the engine's start."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    blocks: int = 0
    stored_bytes_total: int = 0
    loaded_bytes_total: int = 0
    load_s_total: float = 0.0  # seconds spent reading
    evictions_total: int = 0  # blocks that made room for others
    dropped_total: dict[str, int] = {}  # blocks that were not stored, or not used, by the reason


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and running totals of one engine. Totals count since the engine's start."""

    step: int = 0
    every_s: float = 0.0
    """Seconds after which, with the end of a step, an engine that works tells more; 0: it tells when it likes."""
    running: int = 0
    waiting: int = 0
    waiting_by_priority: dict[int, int] = {}
    waiting_tokens_by_priority: dict[int, int] = {}
    """Tokens that waiting sequences have to compute, at most: part of them may be in the prefix cache."""
    waiting_by_reason: dict[str, int] = {}
    """Waiting sequences by what they wait for (`waiting_reason`); reasons for which none waits are left out."""
    prefill_tokens: int = 0  # tokens that running sequences still have to compute before they decode
    decode_rows: int = 0  # running sequences that decode
    decode_context: int = 0  # tokens that those have, prompt and output
    step_times: StepTimes | None = None  # None until the engine knows how long its steps take
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0  # free or held only by the prefix cache (evictable at once)
    kv_blocks_cached: int = 0  # held only by the prefix cache
    kv_waste_ratio: float = 0.0  # allocated KV slots of running requests that hold no token, over all allocated slots
    batch_tokens: int = 0  # tokens computed in the latest step
    batch_seqs: int = 0
    step_s: float = 0.0  # seconds of the latest step
    steps_by_tokens: list[int] = []
    """Steps by their number of tokens: up to each of `STEP_TOKENS`, then those with more."""
    step_tokens_total: int = 0  # tokens computed in all steps
    prompt_tokens_total: int = 0  # prompt tokens computed
    cached_tokens_total: int = 0  # prompt tokens taken from the prefix cache
    output_tokens_total: int = 0
    preemptions_total: int = 0
    aborts_total: int = 0
    finished_total: int = 0
    refused_total: dict[str, int] = {}
    evictions_total: int = 0
    tenant_tokens_total: dict[str, int] = {}  # tokens served (prompt computed + output) by tenant
    kv_tiers: dict[str, KVTierStats] = {}  # by the tier's name; empty where there are none
    lookups: LookupStats = LookupStats()
    adapters: AdapterStats = AdapterStats()
    speculation: SpeculationStats = SpeculationStats()
    sessions: SessionStats = SessionStats()
    experts: ExpertStats = ExpertStats()
    work: WorkStats = WorkStats()


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Model that an engine serves; sent once when it is ready."""

    kind: str  # `generate`, `embed`, or `score`: a cross-encoder
    architecture: str
    dtype: str
    vocab_size: int
    max_context_length: int
    num_parameters: int
    quantization: str = ""
    """Form of the weights: `int8`, `int4`, or the method of a quantised checkpoint; empty: in `dtype`."""
    kernels: str = ""  # the backend that multiplies
    embedding_size: int = 0
    pair_template: str = ""  # in which a cross-encoder reads pairs; empty: as its tokenizer joins two texts
    kv_blocks: int = 0
    read_bytes_per_s: float = 0.0
    """Bytes of weights that the device reads in a second in this model's own products; 0: not measured."""
    kv_dtype: str = ""  # type of cached keys and values; empty where there are none
    max_num_seqs: int = 0  # that may run at once, of a model that generates text
    block_size: int = 16
    cache_namespace: str = ""  # of the names of cached blocks; see `kvarn.wire.block_names`
    start_s: dict[str, float] = {}  # seconds spent in each phase of the start, by name

    def has_tokens(self, token_ids: Sequence[int]) -> bool:
        """Whether all of these are in the vocabulary."""
        return not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.vocab_size)


class Ready(Message, frozen=True, kw_only=True):
    card: ModelCard


class Progress(Message, frozen=True, kw_only=True):
    stage: str
    fraction: float


class StepOutput(Message, frozen=True, kw_only=True):
    """All deltas of one step in one message."""

    deltas: list[TokenDelta]
    stats: EngineStats | None = None
    """Gauges after the step: not with each, but several times a second, and always with the last before a rest."""


class Refused(Message, frozen=True, kw_only=True):
    """A request was not taken, or given up before its end."""

    request_id: str
    reason: RefusalReason
    message: str
    retry_after_s: float | None = None


class Embedded(Message, frozen=True, kw_only=True):
    """The answer to `Embed`: for each input a vector, float32 little-endian bytes of `embedding_size` numbers."""

    request_id: str
    vectors: list[bytes]


class AdapterChanged(Message, frozen=True, kw_only=True):
    """The answer to `LoadAdapter` and `UnloadAdapter`: it was done, or not, and why."""

    request_id: str
    problem: str = ""  # empty: it was done
    code: str = ""  # `exists`, `missing`, or `invalid`


class Adapters(Message, frozen=True, kw_only=True):
    """All adapters that requests may name: to each gateway process that joins, and to all at each change."""

    revision: int  # counts changes; 0: those of the configuration
    adapters: list[AdapterInfo]


FromEngine = (
    Ready
    | Progress
    | StepOutput
    | Refused
    | Embedded
    | AdapterChanged
    | Adapters
    | BlockEvents
    | EngineAnswer
    | ToSupervisor
)
