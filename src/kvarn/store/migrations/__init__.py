"""Alembic's revisions. `kvarn.store.migrate` runs them."""
