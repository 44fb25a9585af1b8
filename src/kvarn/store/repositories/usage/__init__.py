"""The usage ledger: events, sums, budgets, billing and the outbox."""
