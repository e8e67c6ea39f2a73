"""F1: the keys."""
