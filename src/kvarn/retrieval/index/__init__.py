"""Indexes over the chunks of vector stores: words by BM25, vectors by their angle."""
