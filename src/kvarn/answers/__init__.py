"""What an answer is: prompts, generation, choices, and what stands before them. No HTTP server."""
