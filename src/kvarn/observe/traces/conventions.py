"""Names of attributes: OpenTelemetry's conventions, in the one place that follows when they change.

GenAI: open-telemetry/semantic-conventions-genai at 002c8a6ea1c8a42b14a4527db83b3cabcded610a, all in development.
HTTP: open-telemetry/semantic-conventions v1.41.1. vLLM's: `vllm.tracing.SpanAttributes` of 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvarn.observe.traces.traced import TracedRequest, TracedTool, TracedTurn

Value = str | int | float | bool | list[str]
Attributes = dict[str, Value]

PROVIDER = "kvarn"
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
_CACHED = "gen_ai.usage.cache_read.input_tokens"
_REASONING = "gen_ai.usage.reasoning.output_tokens"

MODALITY = {"gen_ai.token.modality": "text"}


class GenAiMetric(NamedTuple):
    """A metric of the GenAI conventions. `bounds`: of a histogram's buckets; None: a counter."""

    name: str
    unit: str
    description: str
    bounds: tuple[float, ...] | None


_DURATIONS = tuple(0.01 * 2**power for power in range(14))
_TOKENS = tuple(float(4**power) for power in range(14))
REQUEST_DURATION = GenAiMetric("gen_ai.server.request.duration", "s", "Time of a request.", _DURATIONS)
TIME_TO_FIRST_TOKEN = GenAiMetric(
    "gen_ai.server.time_to_first_token",
    "s",
    "Time to the first token.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TIME_PER_OUTPUT_TOKEN = GenAiMetric(
    "gen_ai.server.time_per_output_token",
    "s",
    "Time per output token after the first.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
TOKEN_USAGE = GenAiMetric("gen_ai.client.token.usage", "{token}", "Tokens of a request, by their type.", _TOKENS)
INPUT_TOKENS = GenAiMetric(
    "gen_ai.client.inference.operation.input_tokens", "{token}", "Input tokens of a request.", _TOKENS
)
OUTPUT_TOKENS = GenAiMetric(
    "gen_ai.client.inference.operation.output_tokens", "{token}", "Output tokens of a request.", _TOKENS
)


def usage_counter(kind: str) -> GenAiMetric:
    """The counter of `input_tokens`, `output_tokens`, `cache_read.input_tokens` or `reasoning.output_tokens`."""
    return GenAiMetric(f"gen_ai.client.inference.usage.{kind}", "{token}", "Tokens used.", None)


def metric_attributes(request: TracedRequest, turn: TracedTurn) -> dict[str, str]:
    attributes = {
        "gen_ai.operation.name": operation_of(request.route),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model_route or turn.model,
        "gen_ai.response.model": turn.model,
    }
    return attributes | ({"error.type": "failed"} if turn.outcome == "failed" and not turn.refused else {})


def operation_of(endpoint: str) -> str:
    """The convention's name of what an endpoint does; its last word for what has none, such as `rerank`."""
    return _OPERATIONS.get(endpoint) or endpoint.rstrip("/").rpartition("/")[2] or "request"


def is_operation(endpoint: str) -> bool:
    """Whether an endpoint is one of the conventions': it asks a model."""
    return endpoint in _OPERATIONS


def request_attributes(request: TracedRequest) -> Attributes:
    attributes: Attributes = {
        "http.request.method": request.method,
        "http.route": request.route,
        "http.response.status_code": request.status,
        "kvarn.request.id": request.request_id,
        "kvarn.organization.id": request.organization_id,
        "kvarn.project.id": request.project_id,
    }
    if request.key_id:
        attributes["kvarn.key.id"] = request.key_id
    if request.model_route:
        attributes["gen_ai.request.model"] = request.model_route
    if request.is_error:
        attributes["error.type"] = str(request.status)
    if request.disconnected:
        attributes["kvarn.client_left"] = True
    if not request.method:
        del attributes["http.request.method"], attributes["http.route"], attributes["http.response.status_code"]
    return attributes


def turn_attributes(request: TracedRequest, turn: TracedTurn) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": operation_of(request.route),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model_route or turn.model,
        "gen_ai.response.model": turn.model,
        "gen_ai.usage.input_tokens": turn.prompt_tokens,
        "gen_ai.usage.output_tokens": turn.output_tokens,
        _CACHED: turn.cached_tokens,
        "kvarn.turn.id": turn.id,
        "kvarn.turn.outcome": turn.outcome,
        "kvarn.service_tier": turn.service_tier,
    }
    optional: dict[str, Value | None] = {
        _REASONING: turn.reasoning_tokens or None,
        "gen_ai.request.max_tokens": turn.max_tokens,
        "gen_ai.request.choice.count": turn.choices if turn.choices != 1 else None,
        "gen_ai.response.finish_reasons": list(turn.finish_reasons) or None,
        "kvarn.model.version": turn.model_version or None,
        "kvarn.adapter": turn.adapter or None,
        "kvarn.replica": turn.replica or None,
        "error.type": "refused" if turn.refused else "failed" if turn.outcome == "failed" else None,
    }
    return attributes | {name: value for name, value in optional.items() if value is not None}


def tool_attributes(call: TracedTool) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "extension",
        "kvarn.tool.type": call.type,
        "kvarn.tool.status": call.status,
    }
    return attributes | ({"error.type": call.status} if call.status != "completed" else {})


def vllm_attributes(turn: Attributes, seconds: Mapping[str, float]) -> Attributes:
    """The attributes of vLLM's span `llm_request`. `turn`: attributes of the turn's span; `seconds`: of the parts
    `queue`, `prefill`, `decode`, `first` (to the first token) and `total`, as far as they are known."""
    names = {
        "queue": "gen_ai.latency.time_in_queue",
        "first": "gen_ai.latency.time_to_first_token",
        "total": "gen_ai.latency.e2e",
        "prefill": "gen_ai.latency.time_in_model_prefill",
        "decode": "gen_ai.latency.time_in_model_decode",
    }
    old = {
        "gen_ai.request.id": "kvarn.turn.id",
        "gen_ai.request.n": "gen_ai.request.choice.count",
        "gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens",
        "gen_ai.usage.completion_tokens": "gen_ai.usage.output_tokens",
    }
    attributes: Attributes = {name: turn.get(ours, 1) for name, ours in old.items()}
    attributes |= {names[part]: value for part, value in seconds.items()}
    if "prefill" in seconds and "decode" in seconds:
        attributes["gen_ai.latency.time_in_model_inference"] = seconds["prefill"] + seconds["decode"]
    return attributes
