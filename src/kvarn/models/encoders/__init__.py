"""Models that turn a text into a vector or a score."""
