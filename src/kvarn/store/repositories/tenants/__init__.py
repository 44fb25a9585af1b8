"""Organisations, projects, users, keys and limits; the audit log of their changes."""
