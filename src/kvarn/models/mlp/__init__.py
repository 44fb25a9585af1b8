"""The feed-forward half of a layer: dense, or a mixture of experts."""
