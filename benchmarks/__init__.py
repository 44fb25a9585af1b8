"""Runs against peers: the workloads, the random-weight models and the runner. `python -m benchmarks.run --help`."""
