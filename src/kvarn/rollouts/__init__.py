"""Rollouts of versions: routes, shadow copies, gates, sequential tests."""
