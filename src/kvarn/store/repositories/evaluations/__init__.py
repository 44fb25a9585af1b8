"""Evaluation sets, and the runs of models over them."""
