"""Requests and tokens per minute, and how many run at once: one algorithm, in the process and as a script in Redis."""
