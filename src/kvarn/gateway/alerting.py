"""Evaluation of alert rules in this process, and the webhook that hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry

from kvarn.config.alerts import AlertsConfig
from kvarn.config.load import ConfigError
from kvarn.jobs.periodic import Periodic
from kvarn.observe.alerts.monitor import AlertMonitor, Transition
from kvarn.observe.alerts.webhook import AlertWebhook

_DELIVER_EVERY_S = 60.0


class Alerting:
    """Started and stopped with the application. Each gateway process evaluates the metrics of all, so that each can
    show the same states; one of them tells the webhook.

    Args:
        read: The metrics of all gateway processes.
        tells: Whether this process tells the webhook.

    Raises:
        ConfigError: `alerts.off` names no rule.
    """

    def __init__(self, config: AlertsConfig, read: Callable[[], Awaitable[CollectorRegistry]], *, tells: bool) -> None:
        self.enabled = config.enabled
        self.webhook_configured = config.webhook_url is not None
        self.webhook: AlertWebhook | None = None
        if config.webhook_url is not None and tells:
            self.webhook = AlertWebhook(config.webhook_url, config.webhook_headers)
        try:
            self.monitor = AlertMonitor(read, config.off, self._tell)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._evaluating = Periodic("evaluations of alert rules", self._evaluate, config.interval_s)
        self._telling = None
        if self.webhook is not None:
            self._telling = Periodic("messages about alerts", self.webhook.deliver, _DELIVER_EVERY_S)
        self._evaluated = asyncio.Event()

    def start(self) -> None:
        if self.enabled:
            self._evaluating.start()
            if self._telling is not None:
                self._telling.start()

    async def stop(self) -> None:
        await self._evaluating.stop()
        if self._telling is not None:
            await self._telling.stop()
        if self.webhook is not None:
            await self.webhook.close()

    async def next_evaluation(self) -> None:
        """Wait until the rules have been evaluated once more."""
        await self._evaluated.wait()

    async def _evaluate(self) -> None:
        await self.monitor.evaluate()
        self._evaluated.set()
        self._evaluated = asyncio.Event()

    def _tell(self, transitions: Sequence[Transition]) -> None:
        if self.webhook is not None and self._telling is not None:
            self.webhook.add(transitions)
            self._telling.wake()
