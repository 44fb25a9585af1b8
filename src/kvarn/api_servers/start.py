"""What the main process sends to a gateway process, and the methods that each may call of the other."""

from __future__ import annotations

import msgspec

from kvarn.replica.client.protocol import ReplicaStatus

START = "start"
"""Main to other, first: `Start`."""
REPLICA = "replica"
"""Main to other, at each change: `ReplicaStatus`."""
SNAPSHOT = "metrics.snapshot"
"""Main to other: what it has counted, as a list of `MetricFamily`."""
METRICS = "metrics.all"
"""Other to main: what all have counted, in the same form."""
SERVING = "serving"
"""Other to main: it takes requests."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway process has to become."""

    number: int
    """Of this process, from 1 on; never used again."""
    config: str
    """JSON of the `KvarnConfig`."""
    directories: dict[str, str]
    """Of the checkpoints, by the model's name."""
    created: dict[str, int]
    """When each model was first served, as `/v1/models` tells."""
    broken: list[str]
    """Models whose tokenizer or template the main process cannot load either."""
    replicas: list[ReplicaStatus]
