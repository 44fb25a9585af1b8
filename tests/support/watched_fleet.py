"""Real engine processes whose memory a test can corrupt, under the watch for silent failure."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvarn.config.model import ModelConfig
from kvarn.config.quality import QualityConfig
from kvarn.config.schema import ReplicaConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.quality.golden import GoldenPrompt
from kvarn.quality.monitor import Drift, QualityMonitor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.text.checkpoint import checkpoint_fingerprint, resolve_checkpoint

ENGINES = Path(__file__).parent.parent / "quality" / "engines"


@dataclass
class Fleet:
    """Real engine processes with the demo model, and the watch over them. A `MonitoredModel`."""

    folder: Path
    name: str = "kvarn-demo"
    fingerprint: str = ""
    replicas: dict[str, ZmqReplicaClient] = field(default_factory=dict)
    prompts: list[GoldenPrompt] = field(default_factory=list)
    supervisors: dict[str, EngineSupervisor] = field(default_factory=dict)
    drifts: list[Drift] = field(default_factory=list)

    def watch(self, on_drift: Callable[[Drift], Awaitable[None]] | None = None, **config: Any) -> QualityMonitor:
        async def note(drift: Drift) -> None:
            self.drifts.append(drift)
            if on_drift is not None:
                await on_drift(drift)

        return QualityMonitor(lambda: [self], QualityConfig(**config), note)

    async def start(self, *names: str, environment: dict[str, str] | None = None, **model: Any) -> None:
        """Start engines; `model` are settings of the model."""
        directory = resolve_checkpoint("kvarn-demo")
        self.fingerprint = checkpoint_fingerprint(directory)
        settings = {"kv_cache_gib": 0.05, "threads": 1} | model
        draft = settings.get("speculation", {}).get("model")
        previous = {key: os.environ.get(key) for key in environment or {}}
        for name in names:
            os.environ |= environment or {}
            spec = ReplicaSpec(
                model=ModelConfig(name=name, path="kvarn-demo", **settings).model_dump_json(),
                directory=str(directory),
                draft_directory=str(directory.with_name(draft)) if draft else "",
                log_level="warning",
                factory="faulty_engine:build",
            )
            supervisor = self.supervisors[name] = EngineSupervisor(spec, ReplicaConfig(restart_backoff_s=0.05))
            client = self.replicas[name] = ZmqReplicaClient(self.name)
            supervisor.launch()
            supervisor.subscribe(client.update)
            supervisor.start()
        for key, value in previous.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
        await asyncio.gather(*(self.supervisors[name].wait_until_ready() for name in names))

    def fault_at_start(self, name: str, **fault: Any) -> Path:
        """Corrupt each engine of this replica that starts while the file is there, which is returned."""
        path = (self.folder / name).with_suffix(".at-start")
        path.write_text(json.dumps(fault))
        return path

    async def corrupt(self, name: str, **fault: Any) -> None:
        """Corrupt the memory of a running engine."""
        path = self.folder / name
        path.write_text(json.dumps(fault))
        pid = self.supervisors[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)
        while path.exists():  # noqa: ASYNC110  the engine is another process
            await asyncio.sleep(0.01)
