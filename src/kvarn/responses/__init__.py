"""Responses and conversations."""
