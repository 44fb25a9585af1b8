"""Text and tokens: checkpoints, tokenizers, chat templates, stop strings, tool calls, sampling parameters."""
