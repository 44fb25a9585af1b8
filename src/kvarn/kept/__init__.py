"""Requests that are over and are kept, so that an operator finds them: which ones, and how they are written."""
