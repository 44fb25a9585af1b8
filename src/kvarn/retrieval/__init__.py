"""Retrieval: documents in vector stores, how they are cut, indexed and searched, and what of them reaches a prompt."""
