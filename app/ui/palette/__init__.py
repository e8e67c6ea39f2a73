"""Ctrl+P: everything by name."""
