"""Weights from a checkpoint, or as an earlier start packed them."""
