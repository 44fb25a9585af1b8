"""The engine process: `python -m kvarn.replica.server`."""
