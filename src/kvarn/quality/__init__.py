"""Golden prompts, the monitor of silent failure, and its expected answers."""
