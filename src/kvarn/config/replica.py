"""Settings of engine processes: how they are watched, and what becomes of their answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvarn.config.section import Section


class FailoverConfig(Section):
    """Recovery of answers whose engine is lost: another replica, or the same one after its restart, continues them. See
    docs/operate/failover.md."""

    max_losses: int = Field(3, ge=0)
    """Engines that one request may lose in a row without one more token, before it fails: it may be what ends them. 0:
    answers end with their engine."""

    max_wait_s: float = Field(120.0, ge=0)
    """Seconds a request waits for a replica that is ready to go on with it."""


class RoutingConfig(Section):
    """Which of a model's replicas answers a request. See docs/operate/routing.md."""

    policy: Literal["prefix", "prefix_only", "least_load", "round_robin", "random"] = "prefix"
    """`prefix`: the earliest first token, by what each replica has cached and what it has to do. `prefix_only`: the
    longest cached prefix. `least_load`: the least load. `round_robin`: in turn. `random`: any."""


class ReplicaConfig(Section):
    """Supervision of engine processes."""

    heartbeat_interval_s: float = Field(0.5, gt=0)
    """Seconds between an engine's heartbeats."""

    heartbeat_timeout_s: float = Field(5.0, gt=0)
    """Seconds without a heartbeat after which an engine counts as dead and is restarted."""

    step_timeout_s: float = Field(300.0, gt=0)
    """Seconds one step may take. An engine that is in one for longer hangs: it is killed and restarted."""

    start_timeout_s: float = Field(600.0, gt=0)
    """Seconds a model may take to load."""

    start_idle_timeout_s: float = Field(60.0, gt=0)
    """Seconds for which an engine that loads a model may make no progress: it reports no further stage, computes
    nothing and reads nothing. Then it hangs: it is killed and restarted. One that does not even send heartbeats is,
    on this machine, after `heartbeat_timeout_s`."""

    separate_cores: bool = True
    """On a machine with four or more physical cores for each gateway process, leave one of them to each (and the second
    hyper-threads of the others to all) and keep the engines' threads on the rest. Off: everything runs wherever the
    system puts it, and kernels use all cores. Without effect under a CPU quota smaller than the machine."""

    restart_backoff_s: float = Field(0.5, gt=0)
    """Pause before an engine is started again that has ended four times in a row before it had computed anything.
    Doubles with each further time. Others are started again at once."""

    max_restart_backoff_s: float = Field(30.0, gt=0)
    """Longest pause before a restart."""
