"""Batches: files of requests, run at the lowest tier on what the engines have left over.

`runner` takes batches by lease, `run` brings one from state to state, `line` runs one request, `capacity` says how many
may run, `validation` and `results` read and write the files.
"""
