"""Ctrl+P: everything by its name."""
