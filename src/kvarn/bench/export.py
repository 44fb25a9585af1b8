"""The JSON document of a run: environment, parameters, summary and one row a request."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvarn import __version__
from kvarn.bench.driver import Outcome
from kvarn.bench.records import Record
from kvarn.bench.summary import Summary

FORMAT = "kvarn-bench/1"
"""Name and version of the document's shape."""


def environment() -> dict[str, Any]:
    """The machine the load generator ran on (the server's may be another)."""
    return {
        "kvarn": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def document(outcome: Outcome, summary: Summary, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a run as plain data; the API key is never part of `parameters`."""
    return {
        "format": FORMAT,
        "started_at": datetime.fromtimestamp(outcome.started_at, UTC).isoformat(timespec="milliseconds"),
        "environment": environment(),
        "parameters": dict(parameters),
        "summary": msgspec.to_builtins(summary),
        "requests": [row(record) for record in sorted(outcome.records, key=lambda each: each.index)],
    }


def write_json(path: Path, outcome: Outcome, summary: Summary, parameters: Mapping[str, Any]) -> None:
    encoded = msgspec.json.encode(document(outcome, summary, parameters))
    path.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")


def row(record: Record) -> dict[str, Any]:
    """One request as plain data: seconds since the start of the run, latencies in milliseconds."""
    fields: dict[str, Any] = {
        "index": record.index,
        "scheduled_s": round(record.scheduled_s, 6),
        "sent_s": round(record.sent_s, 6),
        "end_s": round(record.end_s, 6),
        "lag_ms": round(record.lag_s * 1000, 3),
        "asked_output_tokens": record.asked_output_tokens,
    }
    if record.error is not None:
        return fields | {"error": str(record.error), "message": record.message}
    tpot = record.tpot_s
    return fields | {
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "chunks": len(record.chunk_times),
        "ttft_ms": round(record.ttft_s * 1000, 3),
        "tpot_ms": None if tpot is None else round(tpot * 1000, 4),
        "e2e_ms": round(record.e2e_s * 1000, 3),
    }
