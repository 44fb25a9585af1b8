"""Embeddings, and the relevance of texts to each other."""
