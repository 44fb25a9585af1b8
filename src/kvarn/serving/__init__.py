"""What an answer is, free of HTTP: prompts, generation, choices, and what stands before them."""
