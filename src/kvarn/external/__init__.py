"""Models that other servers run: their replicas and their answers."""
