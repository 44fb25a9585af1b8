"""The recipe of kvarn-demo-rerank: a small cross-encoder that orders passages by how well they answer a query."""
