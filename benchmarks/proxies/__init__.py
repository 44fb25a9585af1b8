"""What a gateway adds: Kvarn's beside LiteLLM's proxy, before engines that keep the same time."""
