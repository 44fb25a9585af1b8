"""The reference backend: every operation in plain torch, on any device that torch has."""
