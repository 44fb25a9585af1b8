"""The load generator behind `kvarn bench`: drives any OpenAI-compatible server and reports the latency clients see.

`workload` or `trace` make `BenchRequest`s (recipes of prompts, no text yet) -> `driver` decides when each is sent ->
`answer` sends one over `http` and keeps its `Record` -> `summary` turns records into figures -> `table`, `report` and
`export` show them.
"""
