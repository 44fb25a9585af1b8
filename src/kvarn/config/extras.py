"""Optional dependencies: `pip install 'kvarn[postgres,redis]'`, or all of them: `kvarn[all]`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvarn.config.model import ModelConfig
    from kvarn.config.schema import KvarnConfig

_PACKAGES = {
    "postgres": "asyncpg",
    "redis": "redis",
    "kafka": "confluent_kafka",
    "encryption": "cryptography",
    "hub": "huggingface_hub",
    "ray": "ray",
    "oidc": "authlib",
    "s3": "s3fs",
    "retrieval": "pypdfium2",
    "xlsx": "openpyxl",
    "usearch": "usearch",
    "mcp": "mcp",
    "tools": "pydantic_monty",
}
"""Packages that each extra installs."""


def missing_extra(needed_by: str, extra: str) -> str | None:
    """The command that installs a missing extra, in one line; None if it is installed."""
    package = _PACKAGES[extra]
    if find_spec(package) is not None:
        return None
    return f"{needed_by} needs the package {package!r}, which is not installed: pip install 'kvarn[{extra}]'"


def missing_extra_of(config: KvarnConfig) -> str | None:
    """The command that installs the extras a configuration needs, in one line; None if all are installed."""
    needed = (
        ((config.store.url or "").startswith("postgres"), "store.url", "postgres"),
        (any(map(_is_bucket, (config.store.blobs or "", *config.store.old_blobs))), "store.blobs", "s3"),
        (config.limits.redis_url is not None, "limits.redis_url", "redis"),
        (config.response_cache.redis_url is not None, "response_cache.redis_url", "redis"),
        (config.metering.kafka is not None, "metering.kafka", "kafka"),
        (config.safety.prompt_key_file is not None, "safety.prompt_key_file", "encryption"),
        (config.console.oidc is not None, "console.oidc", "oidc"),
        (config.fleet.launcher == "ray", "fleet.launcher", "ray"),
        (config.retrieval.index == "usearch", "retrieval.index", "usearch"),
        (any(map(_encrypts_blocks, config.models)), "kv_tiers.encryption_key_file", "encryption"),
    )
    missing = (missing_extra(setting, extra) for is_needed, setting, extra in needed if is_needed)
    return next(filter(None, missing), None)


def _is_bucket(place: str) -> bool:
    return place.startswith(("s3://", "s3a://"))


def _encrypts_blocks(model: ModelConfig) -> bool:
    return model.kv_tiers is not None and model.kv_tiers.encryption_key_file is not None
