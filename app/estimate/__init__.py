"""Predicts how a turn is read, and its seconds and bytes. Pure Python, so that the screen makes the
same predictions as the engine."""
