"""Who a request acts for and what it may do: keys, the cache of principals, scopes, roles, the first key."""
