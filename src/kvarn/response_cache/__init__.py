"""Answers that are given again: what they are found by, and where they are kept."""
