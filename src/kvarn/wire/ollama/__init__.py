"""Ollama's API: what its clients send and read."""
