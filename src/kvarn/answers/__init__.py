"""The life of an answer: prompts, stages, generation, observers. No HTTP server."""
