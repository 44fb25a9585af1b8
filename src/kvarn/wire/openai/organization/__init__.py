"""Administration: requests, objects, usage, budgets."""
