"""Requests and tokens per minute, and how many run at once: one algorithm, in the process and in Redis."""
