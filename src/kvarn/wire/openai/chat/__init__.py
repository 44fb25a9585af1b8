"""Chat completions: requests, messages, tools, answers."""
