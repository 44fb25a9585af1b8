"""Prompts that one engine computes for another: both ends, and the messages between them."""
