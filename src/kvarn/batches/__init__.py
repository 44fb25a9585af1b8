"""Batches: files of requests, run at the lowest tier on what the engines have left over.

`runner` takes batches by lease, `run` brings one from state to state, `lines` runs its requests, a `lane` those for one
model, `line` one of them; `capacity` says how many may run, `pacing` when lines that are held up go on; `validation`
and `results` read and write the files.
"""
