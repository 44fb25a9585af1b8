"""Reasoning of a model before its answer: its formats, its end, and splitting it from the answer."""
