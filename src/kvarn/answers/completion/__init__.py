"""Text completions: prompts, answers and their chunks."""
