"""The usage ledger: what every request did, once; its way to Kafka; prices and budgets."""
