"""Several gateway processes behind one port (`gateway.api_server_count`).

The main process supervises the engines and starts the others; all of them serve HTTP. Each other process is joined to
the main one by a pair of sockets: over it go what all have to count together (limits, reservations of budgets), what
the main process knows of the engines, and metrics.
"""

from __future__ import annotations

import msgspec

from kvarn.replica.client.protocol import ReplicaStatus

# Methods that each may call of the other: to a process beside the main one, and from it.
START = "start"  # first: `Start`
REPLICA = "replica"  # at each change: `ReplicaStatus`
SNAPSHOT = "metrics.snapshot"  # what it has counted, as a list of `MetricFamily`
METRICS = "metrics.all"  # to the main process: what all have counted, in the same form
SERVING = "serving"  # to the main process: it takes requests


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway process has to become."""

    number: int  # of this process, from 1 on; never used again
    config: str  # JSON of the `KvarnConfig`
    directories: dict[str, str]  # of the checkpoints, by the model's name
    created: dict[str, int]  # when each model was first served, as `/v1/models` tells
    broken: list[str]  # models whose tokenizer or template the main process cannot load either
    replicas: list[ReplicaStatus]
