"""The KV cache as bookkeeping: who owns each block, what is cached, what is kept beyond the device."""
