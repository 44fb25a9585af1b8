"""Tool calls in the text a model writes: found while it is written, in the format of each family of models."""
