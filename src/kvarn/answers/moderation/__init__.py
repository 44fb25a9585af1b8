"""Moderation of prompts and answers."""
