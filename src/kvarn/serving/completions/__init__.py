"""Text completions."""
