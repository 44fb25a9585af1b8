"""What is installed only where a configuration asks for it: `pip install 'kvarn[postgres,redis,kafka]'`."""

from __future__ import annotations

from importlib.util import find_spec

from kvarn.config.schema import KvarnConfig


def missing_extra(config: KvarnConfig) -> str | None:
    """What to install for a configuration, in one line; None where it is all there."""
    url = config.store.url or ""
    needed = (
        (url.startswith("postgres"), "store.url", "postgres", "asyncpg"),
        (config.limits.redis_url is not None, "limits.redis_url", "redis", "redis"),
        (config.metering.kafka is not None, "metering.kafka", "kafka", "confluent_kafka"),
    )
    for is_needed, setting, extra, module in needed:
        if is_needed and find_spec(module) is None:
            return f"{setting} needs the package {module!r}, which is not installed: pip install 'kvarn[{extra}]'"
    return None
