"""Answers that must match a grammar: making it, and checking the finished answer."""
