"""Bytes, operations and floors of a step, for a model on a device. Pure arithmetic: no torch, nothing is measured."""
