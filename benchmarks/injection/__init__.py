"""Orders hidden in retrieved text and in results of tools: what of them reaches a prompt, a tool or a reader."""
