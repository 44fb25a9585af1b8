"""Settings that people change first, each with its reason and an example that loads."""

from __future__ import annotations

import re
from typing import Any

from kvarn.config.schema import KvarnConfig
from kvarn.config.yaml import parse_yaml

HEADING = """\
## Settings people change first

Each example is a part of `kvarn.yaml` that can stand alone.
"""
FIRST_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("models[].path", "Serve your own model.", "models: [{name: chat, path: kvarn-demo}]"),
    ("models[].aliases", "Old names go on working.", "models: [{name: chat, path: kvarn-demo, aliases: [gpt-4o]}]"),
    (
        "models[].max_context_length",
        "Take less memory for each request.",
        "models: [{name: chat, path: kvarn-demo, max_context_length: 256}]",
    ),
    (
        "models[].quantization",
        "A smaller, faster model.",
        "models: [{name: chat, path: kvarn-demo, quantization: int8}]",
    ),
    (
        "models[].kv_cache_gib",
        "More requests at once, and longer ones.",
        "models: [{name: chat, path: kvarn-demo, kv_cache_gib: 4}]",
    ),
    ("models[].device", "Say which device computes.", "models: [{name: chat, path: kvarn-demo, device: cpu}]"),
    (
        "models[].replicas",
        "Answers go on when an engine is lost.",
        "models: [{name: chat, path: kvarn-demo, replicas: 2}]",
    ),
    (
        "models[].kv_tiers",
        "Keep what was computed of long prompts, on disk too.",
        "models: [{name: chat, path: kvarn-demo, kv_tiers: {host_gib: 1, disk_gib: 20, directory: /var/cache/kvarn}}]",
    ),
    ("gateway.host", "Let other machines ask; each request then needs a key.", "gateway: {host: 0.0.0.0}"),
    ("gateway.port", "Another port.", "gateway: {port: 9000}"),
    ("gateway.root_path", "Serve below a path of a proxy.", "gateway: {root_path: /llm}"),
    (
        "gateway.ssl_certfile",
        "Speak HTTPS.",
        "gateway: {ssl_certfile: /etc/kvarn/tls.crt, ssl_keyfile: /etc/kvarn/tls.key}",
    ),
    ("data_dir", "Where the database and files are.", "data_dir: /var/lib/kvarn"),
    ("store.url", "One database for several servers.", "store: {url: postgresql://kvarn@db.example.com/kvarn}"),
    ("auth.mode", "Ask for keys on loopback too.", "auth: {mode: keys}"),
    ("limits.requests_per_minute", "A limit for everybody.", "limits: {requests_per_minute: 600}"),
    (
        "metering.prices",
        "Costs and budgets in money.",
        "metering: {prices: [{model: chat, input_per_million: 0.8, output_per_million: 3.2}]}",
    ),
    ("admission.load_shedding", "Refuse at once what would come too late.", "admission: {load_shedding: true}"),
    ("alerts.webhook_url", "Be told of alerts.", "alerts: {webhook_url: https://hooks.example.com/kvarn}"),
    ("log_format", "Logs for programs.", "log_format: json"),
)


def first_settings() -> list[str]:
    """The lines of the section. Raises SystemExit where an example does not set what it is for."""
    lines = [HEADING, "| setting | why | example |", "|---|---|---|"]
    for path, why, example in FIRST_SETTINGS:
        if not _sets(KvarnConfig.model_validate(parse_yaml(example)), path):
            raise SystemExit(f"docs/tools/first_settings.py: the example of {path} does not set it")
        section = path.rpartition(".")[0]
        anchor = re.sub(r"[^\w-]", "", section.lower()) or "top-level"
        lines.append(f"| [`{path}`](#{anchor}) | {why} | `{example}` |")
    return [*lines, ""]


def _sets(config: Any, path: str) -> bool:
    """Whether a configuration has a value of its own at a path."""
    for step in path.split("."):
        name = step.removesuffix("[]")
        if name not in config.model_fields_set:
            return False
        config = getattr(config, name)
        config = config[0] if step.endswith("[]") else config
    return True
