"""Kvarn: serve large language models on your own machines."""

__version__ = "0.1.0"
