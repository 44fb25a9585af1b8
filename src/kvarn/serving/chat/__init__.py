"""Chat completions."""
