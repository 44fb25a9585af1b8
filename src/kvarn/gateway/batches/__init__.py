"""Batches: files of requests, run at the lowest tier on what the engines have left over.

`runner` takes batches by lease, `run` brings one from state to state, `lines` runs its requests, `line` one of them;
`capacity` says how many may run, `pacing` when a batch that is held up goes on; `validation` and `results` read and
write the files.
"""
