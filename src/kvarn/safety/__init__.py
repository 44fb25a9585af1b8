"""Moderation of prompts and answers, and the log of prompts."""
