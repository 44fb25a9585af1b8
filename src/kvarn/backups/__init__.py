"""Backups: the state of a server in one file, made while it serves."""
