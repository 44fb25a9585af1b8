"""Batches: files of requests, run as ordinary requests of the lowest tier.

`worker` takes batches by lease, `run` brings one from state to state, `items` keeps a bounded number of its lines in
flight, `line` runs one of them; `validation` reads the input.
"""
