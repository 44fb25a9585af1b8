"""What a model thinks before it answers: how it is written, where it ends, and how it is told from the answer."""
