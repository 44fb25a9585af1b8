"""Fair shares between tenants; pure."""
