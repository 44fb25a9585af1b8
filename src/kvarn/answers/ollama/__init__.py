"""Ollama's operations, answered as chats, text completions and embeddings."""
