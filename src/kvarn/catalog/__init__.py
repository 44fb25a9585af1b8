"""Served models: versions, adapters, replicas, held requests, failover."""
