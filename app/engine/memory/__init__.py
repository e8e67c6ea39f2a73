"""Which caches are kept, shared and freed."""
