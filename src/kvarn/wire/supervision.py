"""Messages between an engine process and its supervisor; `Stop`, `Ready` and `Progress` are beside the others."""

from __future__ import annotations

from typing import Literal

from kvarn.wire.message import Message


class Supervise(Message, frozen=True, kw_only=True):
    """An engine on another machine has a supervisor, which repeats this as long as it lives."""

    address: str  # ZMQ address that it reads
    knows: Literal["", "warm", "asleep", "ready"] = ""  # what it was told last; what it lacks is sent again


ON_THEIR_WAY_S = 1.0
"""For so long after `Drain` an engine still takes requests: gateways had chosen it before they heard of it."""


class Drain(Message, frozen=True, kw_only=True):
    """Refuse new requests, end those that run, then exit."""


class Warm(Message, frozen=True, kw_only=True):
    """The process has mapped the weights, and waits for `Activate`."""


class Sleep(Message, frozen=True, kw_only=True):
    """Refuse new requests, end those that run, then free the GPU, keep the weights in main memory and wait for
    `Activate`. An engine that cannot do that exits."""


class Asleep(Message, frozen=True, kw_only=True):
    """The engine has fallen asleep, and waits for `Activate`."""


class Activate(Message, frozen=True, kw_only=True):
    """Load the model, or wake it: bring its weights back. Make the KV cache and take requests."""


class Heartbeat(Message, frozen=True, kw_only=True):
    """The process lives; `step` shows whether its loop moves."""

    step: int
    busy_s: float = 0.0  # seconds the present step has been running; 0 when idle
    unheard_s: float = 0.0  # seconds since its supervisor was heard; 0 on the supervisor's own machine
    work: float = 0.0  # done so far, while it loads: see `SessionWork.amount`
    draining: bool = False  # it was told to take no new requests, and ends


class Failed(Message, frozen=True, kw_only=True):
    """The engine cannot go on; the process exits after this."""

    message: str


FromSupervisor = Supervise | Activate | Sleep | Drain  # to an engine
ToSupervisor = Heartbeat | Warm | Asleep | Failed  # from an engine
