"""OpenTelemetry's variables and the configuration: where spans go, and which."""

from __future__ import annotations

import pytest

from kvarn.config.load import ConfigError
from kvarn.config.platform import TracesConfig
from kvarn.observe.traces.context import TraceContext, begin
from kvarn.observe.traces.settings import ExportSettings, export_settings

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def settings(environment: dict[str, str], **config: object) -> ExportSettings | None:
    return export_settings(TracesConfig.model_validate(config), environment, lambda line: None)


@pytest.mark.parametrize(
    ("environment", "config", "url"),
    [
        ({}, {}, None),
        (BASE, {}, "http://collector:4318/v1/traces"),
        (BASE | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own/path"}, {}, "http://own/path"),
        (BASE, {"endpoint": "https://mine"}, "https://mine/v1/traces"),
        ({}, {"endpoint": "https://mine/v1/traces"}, "https://mine/v1/traces"),
        (BASE | {"OTEL_SDK_DISABLED": "true"}, {"endpoint": "https://mine"}, None),
        (BASE | {"OTEL_TRACES_EXPORTER": "none"}, {}, None),
    ],
)
def test_spans_go_to_the_endpoint_that_is_named(
    environment: dict[str, str], config: dict[str, object], url: str | None
) -> None:
    found = settings(environment, **config)
    assert (found.url if found is not None else None) == url


def test_headers_timeout_and_resource_are_read() -> None:
    found = settings(
        BASE
        | {
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=1",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2500",
            "OTEL_SERVICE_NAME": "chat",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=other",
        },
        headers={"x": "2"},
    )
    assert found is not None
    assert dict(found.headers) == {"api-key": "a b", "x": "2"}
    assert found.timeout_s == 2.5
    assert found.resource["service.name"] == "chat"
    assert found.resource["deployment.environment.name"] == "prod"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "no-value"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://host:port"),
    ],
)
def test_a_variable_without_a_valid_value_is_refused(variable: str, value: str) -> None:
    with pytest.raises(ConfigError):
        settings(BASE | {variable: value})


@pytest.mark.parametrize(
    "environment",
    [BASE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}],
)
def test_an_endpoint_of_grpc_is_warned_of(environment: dict[str, str]) -> None:
    lines: list[str] = []
    export_settings(TracesConfig(), environment, lines.append)
    assert "4318" in lines[0]


@pytest.mark.parametrize(
    ("sampler", "own", "sampled", "unsampled"),
    [
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
        ("always_on", True, True, True),
        ("always_off", False, False, False),
    ],
)
def test_the_sampler_decides(sampler: str, own: bool, sampled: bool, unsampled: bool) -> None:
    found = settings(BASE | {"OTEL_TRACES_SAMPLER": sampler})
    assert found is not None
    new = begin("a", None)
    child = TraceContext(new.trace_id, new.span_id, parent_id="1" * 16)
    assert [found.samples(each) for each in (new, child, child._replace(sampled=False))] == [own, sampled, unsampled]


def test_a_ratio_of_the_traces_is_sampled() -> None:
    found = settings(BASE | {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"})
    assert found is not None
    share = sum(found.samples(begin(str(number), None)) for number in range(4000)) / 4000
    assert 0.2 < share < 0.3
