"""Embeddings and reranking."""
