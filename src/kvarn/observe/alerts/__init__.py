"""Alert rules, as Prometheus reads them and as this process evaluates them."""
