"""Settings of the export: the configuration's, then OpenTelemetry's environment variables.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote, urlsplit

import httpx

import kvarn
from kvarn.config.load import ConfigError
from kvarn.config.platform import TracesConfig
from kvarn.observe.traces.context import TraceContext

_GRPC_PORT = 4317
_SAMPLERS = ("always_on", "always_off", "traceidratio")
_PARENT_BASED = "parentbased_"
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector of one signal."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = _TIMEOUT_S
    resource: Mapping[str, str] = field(default_factory=dict)

    def client(self, transport: httpx.BaseTransport | None) -> httpx.Client:
        """A client for what is sent: JSON, compressed."""
        headers = {**self.headers, "content-type": "application/json", "content-encoding": "gzip"}
        return httpx.Client(timeout=self.timeout_s, headers=headers, transport=transport, trust_env=True)


@dataclass(frozen=True, slots=True)
class ExportSettings(Collector):
    """The collector, and which requests it gets."""

    sampler: str = "parentbased_always_on"
    ratio: float = 1.0

    def samples(self, context: TraceContext) -> bool:
        """Whether a request's spans are exported."""
        sampler = self.sampler
        if sampler.startswith(_PARENT_BASED):
            if context.parent_id:
                return context.sampled
            sampler = sampler.removeprefix(_PARENT_BASED)
        if sampler == "traceidratio":
            return int(context.trace_id[16:], 16) < self.ratio * (1 << 64)
        return sampler == "always_on"


def export_settings(
    config: TracesConfig, environment: Mapping[str, str], warn: Callable[[str], None]
) -> ExportSettings | None:
    """Settings of the configuration and the environment; None: spans are not exported.

    Args:
        config: The configuration's own.
        environment: The process's variables.
        warn: Is given a line for each setting that cannot be followed.

    Raises:
        ConfigError: A variable has no valid value.
    """
    found = _collector("traces", config.endpoint, environment, warn)
    if found is None:
        return None
    return ExportSettings(
        found.url, {**found.headers, **config.headers}, found.timeout_s, found.resource, *_sampler(environment)
    )


@dataclass(frozen=True, slots=True)
class MetricsExportSettings(Collector):
    """The collector of metrics, and how often it gets them."""

    interval_s: float = 60.0


def metrics_export_settings(
    environment: Mapping[str, str], warn: Callable[[str], None]
) -> MetricsExportSettings | None:
    """Settings of the environment; None: metrics are not exported. Raises as `export_settings`."""
    found = _collector("metrics", None, environment, warn)
    if found is None:
        return None
    interval_s = _interval_s(environment.get("OTEL_METRIC_EXPORT_INTERVAL") or "60000")
    resource = {**found.resource, "service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}
    return MetricsExportSettings(found.url, found.headers, found.timeout_s, resource, interval_s)


def _collector(
    signal: str, endpoint: str | None, environment: Mapping[str, str], warn: Callable[[str], None]
) -> Collector | None:
    """The collector at the configuration's endpoint, else that of the environment; None: there is none."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") == "none":
        return None
    base = endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    own = None if endpoint else environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    url = _url(signal, own, base)
    if not url:
        return None
    variable = partial(_variable, environment, signal.upper())
    _check_url(signal, url, variable("PROTOCOL"), warn)
    headers = _pairs(variable("HEADERS"), "HEADERS")
    return Collector(url, headers, _milliseconds(variable("TIMEOUT")), _resource(environment))


def _url(signal: str, own: str | None, base: str | None) -> str | None:
    """The address of a signal: its own as it is, or the one below the collector's."""
    path = f"/v1/{signal}"
    if own or not base:
        return own
    return base if base.rstrip("/").endswith(path) else base.rstrip("/") + path


def _check_url(signal: str, url: str, protocol: str, warn: Callable[[str], None]) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the endpoint of {signal} {url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the endpoint of {signal} is {url!r}: use an address such as http://localhost:4318")
    if protocol == "grpc" or port == _GRPC_PORT:
        warn(f"{signal} are sent as OTLP over HTTP, not gRPC, to {url}: collectors take it on port 4318")


def _interval_s(text: str) -> float:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}: use milliseconds, such as 60000")
    return int(text) / 1000


def _variable(environment: Mapping[str, str], signal: str, name: str) -> str:
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}")
    return own or environment.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _pairs(text: str, name: str) -> dict[str, str]:
    """`a=1,b=2`, percent-encoded."""
    pairs: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"OpenTelemetry's variable {name} holds {part!r}: write it as name=value,name=value")
        pairs[key.strip()] = unquote(value.strip())
    return pairs


def _milliseconds(text: str) -> float:
    try:
        return float(text or 1000 * _TIMEOUT_S) / 1000
    except ValueError:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {text!r}: use milliseconds, such as 10000") from None


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    attributes = {
        "service.name": "kvarn",
        "service.version": kvarn.__version__,
        "host.name": socket.gethostname(),
        **_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""), "OTEL_RESOURCE_ATTRIBUTES"),
    }
    if name := environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = name
    return attributes


def _sampler(environment: Mapping[str, str]) -> tuple[str, float]:
    sampler = environment.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if sampler.removeprefix(_PARENT_BASED) not in _SAMPLERS:
        known = ", ".join([*_SAMPLERS, *(_PARENT_BASED + name for name in _SAMPLERS)])
        raise ConfigError(f"OTEL_TRACES_SAMPLER is {sampler!r}: use one of {known}")
    text = environment.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        ratio = float(text)
        if not 0 <= ratio <= 1:
            raise ValueError
    except ValueError:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG is {text!r}: use a number from 0 to 1") from None
    return sampler, ratio
