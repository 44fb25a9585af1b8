"""Background work: one kind of lease, one kind of worker."""
