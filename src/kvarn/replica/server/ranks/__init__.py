"""Processes of a model's ranks beside the engine process."""
