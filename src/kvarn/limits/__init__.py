"""Rate limits (requests and tokens per minute, requests at once) and budgets (tokens or cost of a period): one
algorithm, in the process and as a script in Redis."""
