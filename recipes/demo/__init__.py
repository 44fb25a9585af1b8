"""The recipe that makes kvarn-demo, its draft model, its adapters and its golden set from nothing."""
