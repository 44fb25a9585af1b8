"""Conversations, responses and stored chat completions."""
