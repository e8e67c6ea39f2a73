"""Keeps, shares and frees caches."""
