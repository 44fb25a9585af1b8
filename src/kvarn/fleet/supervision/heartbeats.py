"""Silence and hanging steps of an engine process. Pure: time passes in `passed`, once a turn of the loop that reads."""

from __future__ import annotations

import math

from kvarn.config.replica import ReplicaConfig


class HeartbeatWatch:
    """Counts the turns in which nothing came. It counts turns, not time: after the gateway itself was held up (or the
    machine slept), waiting messages are read before the next turn. A turn takes `turn_s`."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.turn_s = min(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        self._config = config
        self._allowed = math.ceil(config.heartbeat_timeout_s / self.turn_s)
        self._silent = self._deaf = 0

    def passed(self, *, heard: bool, busy_s: float = 0.0, unheard_s: float = 0.0) -> str | None:
        """A turn has passed. `heard`: something came, or nothing has to; `busy_s`: seconds of its step, `unheard_s`:
        seconds since it heard from here, both by its latest heartbeat. Returns why it is killed; None: it goes on."""
        config = self._config
        if busy_s > config.step_timeout_s:
            return f"the engine has been in one step for more than {config.step_timeout_s:g} s"
        self._silent = 0 if heard else self._silent + 1
        self._deaf = self._deaf + 1 if unheard_s > config.heartbeat_timeout_s else 0
        if self._silent < self._allowed and self._deaf < self._allowed:
            return None
        what = "was silent" if self._silent >= self._allowed else "heard nothing"
        return f"the engine {what} for {config.heartbeat_timeout_s:g} s"
