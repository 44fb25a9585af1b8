"""Answering with models that other servers run: requests go there as text, answers come back as deltas."""
