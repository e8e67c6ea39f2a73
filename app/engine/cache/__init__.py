"""Caches that store positions, prefill, and snapshots on disk."""
