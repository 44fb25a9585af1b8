"""Kvarn against its peers, in one run: same weights, same load, in turns. `python -m benchmarks.peers --help`.

The way of a run: `engines` say how each engine is installed and started -> `plan` orders the sessions so that engines
take turns -> `session` starts one engine, measures it and stops it -> `records` keeps every figure the moment it is
known -> `figures` takes medians and ratios -> `report`, `section` and `plot` show them.
"""
