"""Small simulations: a model of one second-sized steps, requests at given moments, and the log as a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import Distribution, LinkModel, ReplicaModel
from kvarn.costs.step_times import StepTimes
from kvarn.simulator.attached import ATTACHED
from kvarn.simulator.clients import Stream
from kvarn.simulator.event_log import EventLog
from kvarn.simulator.outcome import Outcome
from kvarn.simulator.scenario import FaultConfig, RolloutPlan, Scenario
from kvarn.simulator.simulation import Simulation
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment

STEP_S = 0.05
TIMES = StepTimes(fixed_s=STEP_S, prefill_token_s=1e-4, decode_row_s=1e-4)


def modelled(**changes: Any) -> ReplicaModel:
    model = ReplicaModel(
        step_times=TIMES,
        kv_blocks=512,
        block_bytes=1 << 20,
        max_context_length=4096,
        start_s=Distribution((20.0,)),
        host_link=LinkModel(bytes_per_s=20e9),
    )
    return msgspec.structs.replace(model, **changes)


def scenario(
    model: dict[str, Any] | None = None,
    faults: Sequence[FaultConfig] = (),
    replica: ReplicaModel | None = None,
    duration_s: float = 120.0,
    rollouts: Sequence[RolloutPlan] = (),
    **settings: Any,
) -> Scenario:
    """One model "m"; `model` and `settings` are of the configuration."""
    config = KvarnConfig.model_validate({"models": [{"name": "m", "path": "none", **(model or {})}], **settings})
    return Scenario(
        config=config,
        replicas={"m": replica or modelled()},
        faults=tuple(faults),
        rollouts=tuple(rollouts),
        duration_s=duration_s,
        drain_s=3600,
    )


def requests(moments: Iterable[float], prompt: int = 64, output: int = 20) -> list[Conversation]:
    return [
        Conversation(
            begins_s=moment,
            turns=(ConversationTurn(segments=(Segment(key=number, length=prompt),), output_tokens=output),),
        )
        for number, moment in enumerate(moments)
    ]


class Run:
    """A simulation that is over, with its log."""

    def __init__(
        self,
        scenario: Scenario,
        traffic: Sequence[Conversation],
        priority: int = 0,
        drain_at_s: float | None = None,
        asked: str = "m",
    ) -> None:
        """`drain_at_s`: when the first replica is told to drain. `asked`: the model that requests name."""
        lines: list[bytes] = []
        log = EventLog(lines.append)
        self.simulation = Simulation(scenario, iter([Stream(iter(traffic), asked, priority)]), log, attach=ATTACHED)
        if drain_at_s is not None:
            first = self.simulation.fleet.supervisors("m")[0]
            self.simulation.world.at(drain_at_s, first.drain, 60.0)
        self.outcome: Outcome = self.simulation.run()
        self.events: list[dict[str, Any]] = [msgspec.json.decode(line) for line in b"".join(lines).splitlines()]

    def times(self, event: str, **fields: Any) -> list[float]:
        """Seconds of the events with these fields."""
        return [each["t"] / 1e6 for each in self.named(event, **fields)]

    def named(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event and fields.items() <= each.items()]
