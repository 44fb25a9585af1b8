"""Responses and conversations: requests, items, answers, events."""
