"""The load generator behind `kvarn bench`: drives any OpenAI-compatible server and reports what its users felt.

The way of a run: `workload` or `trace` make `BenchRequest`s (recipes of prompts, no text yet) -> `driver` decides when
each is sent -> `answer` sends one over `http` and keeps its `Record` -> `summary` turns records into figures ->
`table`, `report` and `export` show them. This room knows no torch and no gateway: the server is only a URL.
"""

from kvarn.bench.driver import Job, Outcome
from kvarn.bench.export import write_json
from kvarn.bench.report import html_report
from kvarn.bench.session import run_job
from kvarn.bench.summary import Slo, Summary, summarise
from kvarn.bench.target import Endpoint, Target
from kvarn.bench.workload import BenchRequest, Lengths, Segment, Vocabulary, synthetic_requests

__all__ = [
    "BenchRequest",
    "Endpoint",
    "Job",
    "Lengths",
    "Outcome",
    "Segment",
    "Slo",
    "Summary",
    "Target",
    "Vocabulary",
    "html_report",
    "run_job",
    "summarise",
    "synthetic_requests",
    "write_json",
]
