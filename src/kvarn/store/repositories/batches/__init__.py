"""Batches and their lines."""
