"""Settings of alerts."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class AlertsConfig(Section):
    """Alerts that the server evaluates itself, without Prometheus. See docs/operate/monitoring.md."""

    enabled: bool = True
    """Evaluate the rules of docs/operate/runbook.md in the server."""

    interval_s: float = Field(15.0, ge=0.1)
    """Seconds between two evaluations."""

    off: tuple[str, ...] = ()
    """Names of rules that are not evaluated, such as `KvarnPrefixHitRateLow` where prompts share nothing."""

    webhook_url: str | None = Field(None, min_length=1)
    """URL that is told of alerts that fire or are resolved, by a POST in the form of Alertmanager's webhooks. It may be
    an address of the local network. Default: nobody is told."""

    webhook_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of what is sent there, such as a key."""
