"""Which replica of a model a request goes to: pure functions."""
