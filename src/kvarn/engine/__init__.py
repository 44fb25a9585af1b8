"""One replica's scheduling, in pure Python: `EngineCore` takes requests and makes plans for an `Executor`, deltas
for gateways."""

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
