"""A terminal that is too small."""
