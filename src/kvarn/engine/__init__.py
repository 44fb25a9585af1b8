"""One replica's scheduling, in pure Python (see docs/architecture.md).

`EngineCore` takes requests and turns them, step by step, into plans for an `Executor` and deltas for the gateways.
"""

from kvarn.engine.core import EngineCore, EngineOutput, EngineParts
from kvarn.engine.errors import AdmissionError, EngineError, IntegrityError, OutOfBlocksError, ProtocolError
from kvarn.engine.scheduler import Scheduler

__all__ = [
    "AdmissionError",
    "EngineCore",
    "EngineError",
    "EngineOutput",
    "EngineParts",
    "IntegrityError",
    "OutOfBlocksError",
    "ProtocolError",
    "Scheduler",
]
