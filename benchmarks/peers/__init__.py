"""Kvarn against its peers, in one run: same weights, same load, in turns. `python -m benchmarks.peers --help`.

`engines` holds for each peer how it is installed and started, `session` starts one after another and measures it,
`records` keeps every figure the moment it is known, `report` makes Markdown tables of medians and ratios.
"""
