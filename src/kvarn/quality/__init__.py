"""Whether replicas and versions still answer as they should: sequential tests, golden prompts, the watch."""
