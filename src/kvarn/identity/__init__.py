"""Authentication and authorisation: keys, the cache of principals, scopes, roles, the first key."""
