"""Anthropic's messages, answered as chat completions."""
