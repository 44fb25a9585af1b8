"""The number of replicas of each model: a pure autoscaler, and the loop around it."""
