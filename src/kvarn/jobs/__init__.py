"""What runs in the background: one kind of lease, one kind of worker."""
