"""The sentence: what most of a slow request's time went to, as a person would say it."""

from __future__ import annotations

from kvarn.explain.explanation import Cause, CauseCode
from kvarn.explain.words import seconds

_WENT_TO = {
    CauseCode.CLIENT_SEND: "a client slow to send its request",
    CauseCode.LIMIT: "waiting for a limit",
    CauseCode.ADMISSION: "waiting for admission: the replicas had enough work",
    CauseCode.NO_REPLICA: "waiting for a replica to be ready",
    CauseCode.COLD_MODEL: "waiting for the model to start",
    CauseCode.QUEUE_SLOT: "waiting for a slot{behind}",
    CauseCode.QUEUE_BUDGET: "waiting for the token budget of the steps{behind}",
    CauseCode.QUEUE_LATENCY: "waiting for the latency targets of others{behind}",
    CauseCode.QUEUE_BLOCKS: "waiting for KV blocks{behind}",
    CauseCode.QUEUE_PRIORITY: "waiting behind better priorities{of}",
    CauseCode.QUEUE_ADAPTER: "loading the adapter{name}",
    CauseCode.QUEUE_TIER: "fetching its KV blocks from a tier",
    CauseCode.QUEUE_GRAMMAR: "compiling its grammar",
    CauseCode.LONG_PROMPT: "computing its own prompt{of}",
    CauseCode.SHARED_STEPS: "steps shared with {others}",
    CauseCode.SLOW_STEPS: "a slow machine: {slow}",
    CauseCode.PREEMPTED: "being preempted{by}",
    CauseCode.FAILOVER: "a failover{of}",
    CauseCode.REJECTED_PROPOSALS: "verifying {agent} that were wrong",
    CauseCode.PREPARE: "preparing its prompt{of}",
    CauseCode.MODERATION: "moderation",
    CauseCode.TOOLS: "tools{of}",
    CauseCode.CLIENT_READ: "a client slow to read",
}


def sentence_of(cause: Cause, total_s: float, own_s: float) -> str:
    """The sentence of a cause. `own_s`: seconds of the model's own work."""
    if cause.code is CauseCode.OWN_WORK:
        if own_s <= 0:
            return f"No model worked for it: it took {seconds(total_s)}."
        share = round(100 * own_s / total_s) if total_s > 0 else 0
        if share < 50:
            return f"No cause stands out: {seconds(own_s)} of {seconds(total_s)} was the model's own work."
        return f"This machine can do it no faster: {share} % of the time was the model's own work."
    agent = cause.agent
    words = _WENT_TO[cause.code].format(
        agent=agent,
        behind=f" behind {agent}" if agent else "",
        of=f": {agent}" if agent else "",
        by=f" for {agent}" if agent else "",
        name=f" {agent}" if agent else "",
        others=agent or "others",
        slow=agent or "steps took longer than such steps do, it was busy or stopped",
    )
    return f"{seconds(cause.seconds)} of {seconds(total_s)} went to {words}."
