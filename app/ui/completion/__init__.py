"""Completion while typing: files after `@`, commands after `/`."""
