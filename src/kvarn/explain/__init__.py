"""Explanation of one request: its parts, why it was slow, what would have helped."""
