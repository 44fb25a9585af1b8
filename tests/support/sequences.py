"""Sequences as an engine hands them to a proposer."""

from __future__ import annotations

from typing import Any

from kvarn.engine.request import Request, Sequence
from kvarn.engine.tenants import TenantAccount
from kvarn.engine.turn import QueueWaits, TurnRecorder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams


def make_sequence(prompt: list[int], tenant: str = "t", **scope: Any) -> Sequence:
    """The first choice of a request of this prompt. `scope`: other fields of the message."""
    sampling = SamplingParams(seed=0, max_tokens=1000)
    message = Submit(request_id="r", prompt_token_ids=prompt, sampling=sampling, tenant=tenant, **scope)
    turn = TurnRecorder(0.0, QueueWaits(), 0)
    return Request(message, TenantAccount(tenant, 1.0), 0.0, 1, 10_000, turn).sequences[0]
